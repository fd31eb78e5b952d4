"""The only statement of what one replica can do: step times, batches, capacity. A number about engines elsewhere is in the wrong room."""
