"""Share one stream among the processes of a host that read the same."""
