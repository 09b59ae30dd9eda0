"""Where it is trained, asynchronously: the parameter server."""
