"""The other controllers of one database: which there are, which jobs they have, and what they answer."""
