"""The web console: pages over the same views as the API's, for a controller or for a state folder."""
