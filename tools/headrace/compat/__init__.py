"""What other libraries' users import, over headrace: they change one import and keep their code."""
