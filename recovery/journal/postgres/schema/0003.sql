-- Version 3: sessions of the console, which hold at every controller, and sign-ins that were used once.
--
-- Neither decides anything about jobs, so no lease is needed. Ages are compared by this server's clock alone.

CREATE TABLE rankmend.console_session (
    session text PRIMARY KEY CHECK (session ~ '^[0-9a-f]{64}$'), -- SHA-256 of the cookie, which is stored nowhere
    key text NOT NULL CHECK (length(key) BETWEEN 1 AND 200),     -- of whom it is: a hash
    identity bytea NOT NULL CHECK (length(identity) <= 65536),   -- what an identity provider says; empty: a token
    opened_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON rankmend.console_session (key);

CREATE TABLE rankmend.used_sign_in (
    mark text PRIMARY KEY CHECK (mark ~ '^[0-9a-f]{64}$'),
    used_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Opens a session. Sessions that are idle or old end, and of one key and of all the ones seen longest ago make room.
CREATE FUNCTION rankmend.open_session(
    asked text, of_key text, with_identity bytea, idle_s double precision, age_s double precision, of_key_max integer, all_max integer
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    LOCK TABLE rankmend.console_session IN SHARE ROW EXCLUSIVE MODE;
    DELETE FROM rankmend.console_session s
    WHERE s.seen_at < clock_timestamp() - make_interval(secs => idle_s)
       OR s.opened_at < clock_timestamp() - make_interval(secs => age_s);
    DELETE FROM rankmend.console_session s WHERE s.session IN (
        SELECT o.session FROM rankmend.console_session o WHERE o.key = of_key ORDER BY o.opened_at DESC OFFSET of_key_max - 1
    );
    DELETE FROM rankmend.console_session s WHERE s.session IN (
        SELECT o.session FROM rankmend.console_session o ORDER BY o.seen_at DESC OFFSET all_max - 1
    );
    INSERT INTO rankmend.console_session (session, key, identity) VALUES (asked, of_key, with_identity);
END
$$;

CREATE FUNCTION rankmend.see_session(asked text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE rankmend.console_session SET seen_at = clock_timestamp() WHERE session = asked
$$;

CREATE FUNCTION rankmend.close_session(asked text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM rankmend.console_session WHERE session = asked
$$;

-- Returns whether this is the first use of a sign-in, and forgets those of long ago, which their own age refuses.
CREATE FUNCTION rankmend.use_sign_in(asked text, kept_s double precision) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM rankmend.used_sign_in u WHERE u.used_at < clock_timestamp() - make_interval(secs => kept_s);
    INSERT INTO rankmend.used_sign_in (mark) VALUES (asked) ON CONFLICT DO NOTHING;
    RETURN FOUND;
END
$$;
