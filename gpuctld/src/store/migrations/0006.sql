-- Schema 6. Tokens of users, as JSON: the hash of the secret, and never the secret.

CREATE TABLE user_tokens (
    id INTEGER PRIMARY KEY,
    doc BLOB NOT NULL
);
