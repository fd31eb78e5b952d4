"""The data path: every request of every client goes through here, waits here, and is answered or refused here."""
