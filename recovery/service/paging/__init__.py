"""What reaches the people on call: one message for each cause, updated while it lasts and closed when it is over."""
