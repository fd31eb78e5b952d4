"""What people look at: the admin API. Never on the data path."""
