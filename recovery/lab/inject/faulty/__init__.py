"""Programs that are a fault while they run. Each waits for a word on its standard input, and ends when that ends."""
