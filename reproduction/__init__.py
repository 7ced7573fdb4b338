"""The paper's tables and figures, measured again: settings, cells, the protocol, and what comes of it."""
