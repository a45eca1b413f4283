"""One file a paper or a classic: the policies that `tide` is compared with."""
