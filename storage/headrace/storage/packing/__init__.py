"""Store lengths of documents and row counts beside a dataset, so that its rows can be packed.

``docs/format.md`` specifies the files. How documents are packed is `headrace.order.packing`'s.
"""
