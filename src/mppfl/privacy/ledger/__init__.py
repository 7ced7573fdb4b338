"""The privacy ledger."""
