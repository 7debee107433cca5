-- Version 2: controllers reach one another, and each of them asks Slurm's and Kubernetes' desk, on which one works.

-- How another controller proves that it reads this database, and by which certificate this one is known. Empty: an older one.
ALTER TABLE rankmend.controller
    ADD COLUMN peer_secret text NOT NULL DEFAULT '' CHECK (length(peer_secret) <= 200),
    ADD COLUMN certificate text NOT NULL DEFAULT '' CHECK (length(certificate) <= 200); -- SHA-256, in hexadecimal

CREATE FUNCTION rankmend.tell_peers(by_controller uuid, secret text, of_certificate text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE rankmend.controller SET peer_secret = secret, certificate = of_certificate WHERE controller_id = by_controller
$$;

-- Adds a request to the journal of a desk, whoever works on that: requests and what a person allows, and nothing else.
-- Raises RM002 as `append` does, and RM004 where the controller that works on it is an older one: it reads no requests of others.
CREATE FUNCTION rankmend.hand_in(
    asked text, by_controller uuid, after bigint, after_checksum bytea,
    kinds text[], majors integer[], minors integer[], unix double precision[], monotonic double precision[],
    boots text[], bodies bytea[], checksums bytea[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kept rankmend.journal;
    newest bigint;
    newest_checksum bytea;
BEGIN
    SELECT * INTO kept FROM rankmend.journal WHERE name = asked AND job_id IS NULL AND NOT is_shared FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no desk %', asked USING ERRCODE = 'RM003';
    END IF;
    IF NOT rankmend.is_alive(by_controller) THEN
        RAISE EXCEPTION 'the lease of controller % has expired', by_controller USING ERRCODE = 'RM001';
    END IF;
    IF NOT kinds <@ ARRAY['slurm_asked', 'slurm_return_allowed'] THEN
        RAISE EXCEPTION 'only requests are handed in to %, not %', asked, kinds USING ERRCODE = 'RM003';
    END IF;
    IF rankmend.is_alive(kept.holder) AND EXISTS (
        SELECT FROM rankmend.controller c WHERE c.controller_id = kept.holder AND c.peer_secret = ''
    ) THEN
        RAISE EXCEPTION 'an older controller works on %: it takes no requests of others', asked USING ERRCODE = 'RM004';
    END IF;
    SELECT number, checksum INTO newest, newest_checksum
    FROM rankmend.record WHERE journal = asked ORDER BY number DESC LIMIT 1;
    IF coalesce(newest, 0) <> after OR (newest IS NOT NULL AND newest_checksum <> after_checksum) THEN
        RAISE EXCEPTION 'journal % ends at record %, not at %', asked, coalesce(newest, 0), after
            USING ERRCODE = 'RM002';
    END IF;
    INSERT INTO rankmend.record
    SELECT asked, after + place, kind, major, minor, unix_s, monotonic_s, boot_id, body, checksum, by_controller, kept.epoch
    FROM unnest(kinds, majors, minors, unix, monotonic, boots, bodies, checksums)
         WITH ORDINALITY AS given (kind, major, minor, unix_s, monotonic_s, boot_id, body, checksum, place);
END
$$;
