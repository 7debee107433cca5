-- Version 4: what agents say of jobs on their nodes outlives the controller that received it.
--
-- A node that is lost says nothing more. Whichever controller takes its job over reads the word here. It decides nothing by itself, so no
-- lease is needed. Ages are compared by this server's clock alone.

CREATE TABLE rankmend.agent_words (
    controller_id uuid PRIMARY KEY, -- that received them; they outlive its row
    words bytea NOT NULL CHECK (length(words) <= 67108864),
    saved_at timestamptz NOT NULL   -- when they were encoded: their ages are of then
);

-- Replaces the words that a controller has received, and forgets those that are too old to count.
CREATE FUNCTION rankmend.save_agent_words(
    by_controller uuid, told bytea, age_s double precision, kept_s double precision
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM rankmend.agent_words w WHERE w.saved_at < clock_timestamp() - make_interval(secs => kept_s);
    INSERT INTO rankmend.agent_words VALUES (by_controller, told, clock_timestamp() - make_interval(secs => age_s))
    ON CONFLICT (controller_id) DO UPDATE SET words = excluded.words, saved_at = excluded.saved_at;
END
$$;
