"""The order of samples: a pure function of a spec and the shard tables, with no I/O.

``docs/order.md`` specifies it so that another language could implement it.
"""

from headrace.order._amounts import epoch_positions
from headrace.order._dealing import LINE_INVERSES
from headrace.order._even_deal import (
    MAX_ACCUMULATED,
    DealSpec,
    check_speeds,
    deal_evenly,
    slices_of,
)
from headrace.order._hash import sample_keys, transform_keys, uniform_draws
from headrace.order._images import AUGMENTATION_VERSION, IMAGES, images_title, split_images
from headrace.order._kept import Kept, joined_digest
from headrace.order._kept_order import KeptMixtureOrder, KeptOrder
from headrace.order._listing import batch_sample_ids, rank_batches
from headrace.order._mixture import (
    Batching,
    Choice,
    MixtureDataset,
    MixtureSpec,
    combined_fingerprint,
    mixture_differences,
)
from headrace.order._mixture_json import dump_mixture, load_mixture
from headrace.order._mixture_order import MixtureOrder
from headrace.order._order import Order
from headrace.order._permutation import NETWORK_ROUNDS, Walk, network_sides, walk_tables
from headrace.order._schedule import Schedule, linear, piecewise
from headrace.order._skips import Skips, check_skips, check_within
from headrace.order._slicing import EndMode, EpochPlan, RankBatch, Row, find_rows
from headrace.order._spec import (
    DEFAULT_RUN_BYTES,
    DEFAULT_SHUFFLE_BYTES,
    ORDER_VERSION,
    OrderSpec,
    spec_differences,
)
from headrace.order._step import Step
from headrace.order._table import ShardTable, Stored, table_of
from headrace.order._token import (
    NUMBER_LIMIT,
    TOKEN_LIMIT_BYTES,
    TOKEN_VERSION,
    TRANSFORMS_LIMIT_BYTES,
    Token,
    TokenEncoder,
    decode_token,
    encode_token,
)

__all__ = [
    "AUGMENTATION_VERSION",
    "DEFAULT_RUN_BYTES",
    "DEFAULT_SHUFFLE_BYTES",
    "IMAGES",
    "LINE_INVERSES",
    "MAX_ACCUMULATED",
    "NETWORK_ROUNDS",
    "NUMBER_LIMIT",
    "ORDER_VERSION",
    "TOKEN_LIMIT_BYTES",
    "TOKEN_VERSION",
    "TRANSFORMS_LIMIT_BYTES",
    "Batching",
    "Choice",
    "DealSpec",
    "EndMode",
    "EpochPlan",
    "Kept",
    "KeptMixtureOrder",
    "KeptOrder",
    "MixtureDataset",
    "MixtureOrder",
    "MixtureSpec",
    "Order",
    "OrderSpec",
    "RankBatch",
    "Row",
    "Schedule",
    "ShardTable",
    "Skips",
    "Step",
    "Stored",
    "Token",
    "TokenEncoder",
    "Walk",
    "batch_sample_ids",
    "check_skips",
    "check_speeds",
    "check_within",
    "combined_fingerprint",
    "deal_evenly",
    "decode_token",
    "dump_mixture",
    "encode_token",
    "epoch_positions",
    "find_rows",
    "images_title",
    "joined_digest",
    "linear",
    "load_mixture",
    "mixture_differences",
    "network_sides",
    "piecewise",
    "rank_batches",
    "sample_keys",
    "slices_of",
    "spec_differences",
    "split_images",
    "table_of",
    "transform_keys",
    "uniform_draws",
    "walk_tables",
]
