"""`mcpmux traffic`: captures and live messages, searched, counted, exported, sent again and served."""
