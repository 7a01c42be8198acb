"""Why a compute buffer is as large as it is: the whole graph replayed under an observer."""
