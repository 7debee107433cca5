-- Version 5: snapshots of folds: what a long journal adds up to, so that who takes it over folds only what follows.
--
-- Nothing rests on them. A controller uses one that its own code has made, whose bytes are whole and whose record the journal has with the
-- same checksum, and folds the whole journal otherwise.

CREATE TABLE rankmend.fold (
    journal text PRIMARY KEY REFERENCES rankmend.journal ON DELETE CASCADE,
    number bigint NOT NULL CHECK (number > 0), -- of the newest record in it
    body bytea NOT NULL CHECK (length(body) <= 67108864),
    epoch bigint NOT NULL                      -- of the lease under which it was written
);

-- Replaces the snapshot of a journal, for the holder of its lease. Locks no row of the journal that an append waits for: one that is written
-- as the lease ends does no harm.
CREATE FUNCTION rankmend.save_fold(
    asked text, by_controller uuid, lease_epoch bigint, at bigint, folded bytea
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT rankmend.is_alive(by_controller) OR NOT EXISTS (
        SELECT FROM rankmend.journal j
        WHERE j.name = asked AND j.holder = by_controller AND j.epoch = lease_epoch AND NOT j.is_shared
    ) THEN
        RAISE EXCEPTION 'the lease of % with epoch % is over', asked, lease_epoch USING ERRCODE = 'RM001';
    END IF;
    INSERT INTO rankmend.fold AS f (journal, number, body, epoch) VALUES (asked, at, folded, lease_epoch)
    ON CONFLICT (journal) DO UPDATE SET number = excluded.number, body = excluded.body, epoch = excluded.epoch
    WHERE f.epoch <= excluded.epoch;
END
$$;
