"""A gateway's journal of usage: files in its state folder."""

from forebay.adapters.journal.files import FileJournal

__all__ = ["FileJournal"]
