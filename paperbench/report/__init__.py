"""What people read: tables and progress."""
