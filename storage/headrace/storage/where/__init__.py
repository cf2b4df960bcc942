"""Filter rows: the language of ``where=``, and which samples an expression keeps."""
