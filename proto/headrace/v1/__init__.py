"""The wire schema of headrace and its generated stubs (`make proto`)."""
