"""The papers' tables and figures, one module each."""
