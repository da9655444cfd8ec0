"""Who a client is: tokens, certificates, and what is told to those who show nothing that counts."""
