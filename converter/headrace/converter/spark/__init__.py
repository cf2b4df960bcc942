"""Run Spark jobs: the code on executors, the rows of a DataFrame, and the end of a job."""
