"""Admission: who may use which replica now, who waits, and who is refused early and honestly."""
