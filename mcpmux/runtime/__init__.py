"""What happens to an exchange: access, routes, merged lists, tasks, notifications. Knows no bytes."""
