"""Steps from one version of the tables to the next; alembic runs them by file."""
