-- Version 1: controllers with their leases, jobs, journals and their records.
--
-- A controller's role may read the tables and call the functions, and nothing else: every write goes through a
-- function, which checks the lease in the same transaction. Each function locks the journal's row until the commit, so
-- that a lease that is taken over and a write under the old lease never overlap: one of them is first.

CREATE TABLE rankmend.schema_version (
    version integer PRIMARY KEY,
    compatible_from integer NOT NULL, -- the oldest version of the schema whose programs can work with this one
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    applied_by text NOT NULL          -- rankmend's version
);

-- One row for each start of a controller. Its leases hold as long as it renews this row.
CREATE TABLE rankmend.controller (
    controller_id uuid PRIMARY KEY,
    name text NOT NULL CHECK (length(name) <= 255),
    url text NOT NULL CHECK (length(url) <= 2000),      -- where launchers and people reach it; may be empty
    version text NOT NULL CHECK (length(version) <= 100),
    lease_s double precision NOT NULL CHECK (lease_s BETWEEN 1 AND 3600),
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL
);

CREATE TABLE rankmend.job (
    job_id uuid PRIMARY KEY,
    owner text NOT NULL CHECK (length(owner) <= 255),   -- subject of the token that began it
    key text NOT NULL CHECK (length(key) <= 4096),
    stored bytea NOT NULL CHECK (length(stored) <= 1048576), -- settings and the job's secret
    ended bytea CHECK (length(ended) <= 8388608),       -- how it ended; null while it runs
    UNIQUE (owner, key)
);

CREATE TABLE rankmend.journal (
    name text PRIMARY KEY CHECK (length(name) <= 100),
    job_id uuid UNIQUE REFERENCES rankmend.job ON DELETE CASCADE,
    is_shared boolean NOT NULL DEFAULT false, -- every controller writes to it, each after reading what the others wrote
    holder uuid REFERENCES rankmend.controller, -- of the lease
    epoch bigint NOT NULL DEFAULT 0,            -- of the lease: the fencing token
    CHECK (NOT is_shared OR holder IS NULL)
);
CREATE INDEX ON rankmend.journal (holder);
INSERT INTO rankmend.journal (name, is_shared) VALUES ('cluster', true), ('slurm', false), ('kubernetes', false);

CREATE TABLE rankmend.record (
    journal text NOT NULL REFERENCES rankmend.journal ON DELETE CASCADE,
    number bigint NOT NULL CHECK (number > 0),
    kind text NOT NULL,
    major integer NOT NULL,
    minor integer NOT NULL,
    unix_s double precision NOT NULL,
    monotonic_s double precision NOT NULL,
    boot_id text NOT NULL,
    body bytea NOT NULL,
    checksum bytea NOT NULL CHECK (length(checksum) = 16),
    written_by uuid NOT NULL,
    epoch bigint NOT NULL,
    PRIMARY KEY (journal, number)
);

-- Whether a controller's lease holds now. An expiry further away than the lease is long comes from another server's
-- clock: it doesn't hold.
CREATE FUNCTION rankmend.is_alive(asked uuid) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM rankmend.controller
        WHERE controller_id = asked AND expires_at > clock_timestamp()
          AND expires_at <= clock_timestamp() + make_interval(secs => lease_s + 1)
    )
$$;

-- Raises RM001 unless this controller holds this lease now; locks the journal's row until the end of the transaction.
CREATE FUNCTION rankmend.demand_lease(asked text, by_controller uuid, lease_epoch bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kept rankmend.journal;
BEGIN
    SELECT * INTO kept FROM rankmend.journal WHERE name = asked FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no journal %', asked USING ERRCODE = 'RM003';
    END IF;
    IF NOT kept.is_shared AND (kept.holder IS DISTINCT FROM by_controller OR kept.epoch <> lease_epoch) THEN
        RAISE EXCEPTION 'the lease of % with epoch % is over: epoch % is in force', asked, lease_epoch, kept.epoch
            USING ERRCODE = 'RM001';
    END IF;
    IF NOT rankmend.is_alive(by_controller) THEN
        RAISE EXCEPTION 'the lease of controller % has expired', by_controller USING ERRCODE = 'RM001';
    END IF;
END
$$;

-- Adds records behind number `after`, all or none. Raises RM002 where the journal does not end there, with this checksum.
CREATE FUNCTION rankmend.append(
    asked text, by_controller uuid, lease_epoch bigint, after bigint, after_checksum bytea,
    kinds text[], majors integer[], minors integer[], unix double precision[], monotonic double precision[],
    boots text[], bodies bytea[], checksums bytea[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    newest bigint;
    newest_checksum bytea;
BEGIN
    PERFORM rankmend.demand_lease(asked, by_controller, lease_epoch);
    SELECT number, checksum INTO newest, newest_checksum
    FROM rankmend.record WHERE journal = asked ORDER BY number DESC LIMIT 1;
    IF coalesce(newest, 0) <> after OR (newest IS NOT NULL AND newest_checksum <> after_checksum) THEN -- null: any
        RAISE EXCEPTION 'journal % ends at record %, not at %', asked, coalesce(newest, 0), after
            USING ERRCODE = 'RM002';
    END IF;
    INSERT INTO rankmend.record
    SELECT asked, after + place, kind, major, minor, unix_s, monotonic_s, boot_id, body, checksum, by_controller, lease_epoch
    FROM unnest(kinds, majors, minors, unix, monotonic, boots, bodies, checksums)
         WITH ORDINALITY AS given (kind, major, minor, unix_s, monotonic_s, boot_id, body, checksum, place);
END
$$;

-- Whether the journal has this record. Writes, too, so that its commit is durable only after that of the record: it
-- waits for the same standbys.
CREATE FUNCTION rankmend.confirm(asked text, at bigint, with_checksum bytea) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE rankmend.journal SET epoch = epoch WHERE name = asked; -- waits for a write that is under way
    RETURN EXISTS (
        SELECT FROM rankmend.record WHERE journal = asked AND number = at AND checksum = with_checksum
    );
END
$$;

-- A controller begins, or renews all its leases at once. False: they had expired, and what it held may be somebody else's.
CREATE FUNCTION rankmend.begin_controller(
    by_controller uuid, named text, at_url text, of_version text, for_s double precision
) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO rankmend.controller (controller_id, name, url, version, lease_s, expires_at)
    VALUES (by_controller, named, at_url, of_version, for_s, clock_timestamp() + make_interval(secs => for_s))
    ON CONFLICT (controller_id) DO NOTHING
$$;

CREATE FUNCTION rankmend.renew(by_controller uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held boolean := rankmend.is_alive(by_controller);
BEGIN
    UPDATE rankmend.controller SET expires_at = clock_timestamp() + make_interval(secs => lease_s)
    WHERE controller_id = by_controller;
    IF NOT held THEN -- what it held while it was not alive it must take anew, under another epoch
        UPDATE rankmend.journal SET holder = NULL WHERE holder = by_controller;
    END IF;
    RETURN held;
END
$$;

-- Takes the lease of a journal. The epoch grows each time, also for one who has it already: a write that is still on its
-- way comes too late. Without an epoch: the lease is held by the named controller.
CREATE FUNCTION rankmend.take(
    asked text, by_controller uuid, OUT epoch bigint, OUT holder_name text, OUT holder_url text, OUT left_s double precision
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kept rankmend.journal;
BEGIN
    SELECT * INTO kept FROM rankmend.journal WHERE name = asked FOR NO KEY UPDATE;
    IF NOT FOUND OR kept.is_shared THEN
        RAISE EXCEPTION 'there is no journal % to take', asked USING ERRCODE = 'RM003';
    END IF;
    IF NOT rankmend.is_alive(by_controller) THEN
        RAISE EXCEPTION 'the lease of controller % has expired', by_controller USING ERRCODE = 'RM001';
    END IF;
    IF kept.holder IS NOT NULL AND kept.holder <> by_controller AND rankmend.is_alive(kept.holder) THEN
        SELECT c.name, c.url, extract(epoch FROM c.expires_at - clock_timestamp())
        INTO holder_name, holder_url, left_s
        FROM rankmend.controller c WHERE c.controller_id = kept.holder;
        RETURN;
    END IF;
    UPDATE rankmend.journal j SET holder = by_controller, epoch = j.epoch + 1 WHERE j.name = asked
    RETURNING j.epoch INTO epoch;
END
$$;

-- Gives a lease back, so that another controller need not wait for its end.
CREATE FUNCTION rankmend.release(asked text, by_controller uuid, lease_epoch bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE rankmend.journal SET holder = NULL WHERE name = asked AND holder = by_controller AND epoch = lease_epoch
$$;

-- A controller ends: gives all its leases back. Rows of controllers that are long gone go, too.
CREATE FUNCTION rankmend.end_controller(by_controller uuid) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE rankmend.journal SET holder = NULL WHERE holder = by_controller;
    UPDATE rankmend.controller SET expires_at = clock_timestamp() WHERE controller_id = by_controller;
    DELETE FROM rankmend.controller c WHERE c.expires_at < clock_timestamp() - interval '30 days'
        AND NOT EXISTS (SELECT FROM rankmend.journal j WHERE j.holder = c.controller_id);
$$;

-- Makes a job and its journal, unless the owner has one under this key already; returns the id under which it is kept.
CREATE FUNCTION rankmend.add_job(asked uuid, of_owner text, under_key text, settings bytea) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known uuid;
BEGIN
    INSERT INTO rankmend.job (job_id, owner, key, stored) VALUES (asked, of_owner, under_key, settings)
    ON CONFLICT (owner, key) DO NOTHING;
    SELECT job_id INTO known FROM rankmend.job WHERE owner = of_owner AND key = under_key;
    INSERT INTO rankmend.journal (name, job_id) VALUES ('job:' || known, known) ON CONFLICT (name) DO NOTHING;
    RETURN known;
END
$$;

-- Keeps what is known of a job (it runs from now on), or how it ended.
CREATE FUNCTION rankmend.save_job(asked uuid, by_controller uuid, lease_epoch bigint, settings bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM rankmend.demand_lease('job:' || asked, by_controller, lease_epoch);
    UPDATE rankmend.job SET stored = settings, ended = NULL WHERE job_id = asked;
END
$$;

CREATE FUNCTION rankmend.end_job(asked uuid, by_controller uuid, lease_epoch bigint, outcome bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM rankmend.demand_lease('job:' || asked, by_controller, lease_epoch);
    UPDATE rankmend.job SET ended = outcome WHERE job_id = asked;
END
$$;

-- Removes a job that has ended, with its journal. The only way in which records ever go.
CREATE FUNCTION rankmend.remove_job(asked uuid, by_controller uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT rankmend.is_alive(by_controller) THEN
        RAISE EXCEPTION 'the lease of controller % has expired', by_controller USING ERRCODE = 'RM001';
    END IF;
    DELETE FROM rankmend.job j WHERE j.job_id = asked AND j.ended IS NOT NULL AND NOT EXISTS (
        SELECT FROM rankmend.journal n WHERE n.job_id = asked AND n.holder <> by_controller AND rankmend.is_alive(n.holder)
    );
    RETURN FOUND;
END
$$;
