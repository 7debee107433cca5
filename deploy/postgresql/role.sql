-- What the controller's role may do in PostgreSQL. docs/operate/postgresql.md has the steps.
--
-- Once for each server, as an administrator: the role with the rights, and a member of it that a controller connects as.
CREATE ROLE rankmend_controller NOLOGIN;
-- CREATE ROLE rankmend LOGIN PASSWORD '...' IN ROLE rankmend_controller;

-- In the database. `rankmend controller migrate` does this by itself where the role is there.
-- The role reads the tables and calls the functions: it can't change a record, nor forge a lease.
REVOKE ALL ON SCHEMA rankmend FROM PUBLIC, rankmend_controller;
REVOKE ALL ON ALL TABLES IN SCHEMA rankmend FROM PUBLIC, rankmend_controller;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA rankmend FROM PUBLIC, rankmend_controller;
GRANT USAGE ON SCHEMA rankmend TO rankmend_controller;
GRANT SELECT ON ALL TABLES IN SCHEMA rankmend TO rankmend_controller;
GRANT EXECUTE ON FUNCTION
    rankmend.add_job,
    rankmend.append,
    rankmend.begin_controller,
    rankmend.close_session,
    rankmend.confirm,
    rankmend.end_controller,
    rankmend.end_job,
    rankmend.hand_in,
    rankmend.is_alive,
    rankmend.open_session,
    rankmend.release,
    rankmend.remove_job,
    rankmend.renew,
    rankmend.save_agent_words,
    rankmend.save_fold,
    rankmend.save_job,
    rankmend.see_session,
    rankmend.take,
    rankmend.tell_peers,
    rankmend.use_sign_in
TO rankmend_controller;
