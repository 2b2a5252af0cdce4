"""The measuring engine: what happens inside a worker process, and what it runs on."""
