"""The classes in Spark's plans whose arguments fully determine what they compute.

Any other class counts as unknown: functions of users and other systems; functions of the clock, the
session, the user or the position of a row; functions that draw a seed during the analysis
(``uuid``, ``shuffle``); and whatever later versions of Spark add.
"""

from __future__ import annotations

CATALYST = "org.apache.spark.sql.catalyst."
LOGICAL = f"{CATALYST}plans.logical."
EXPRESSIONS = f"{CATALYST}expressions."

_PLANS = """
Aggregate Deduplicate Distinct Except Expand Filter Generate GlobalLimit Intersect Join LateralJoin
LocalLimit Offset OneRowRelation Project Range RebalancePartitions Repartition
RepartitionByExpression Sample Sort Tail Union Unpivot Window WithCTE
"""
_TERMS = """
Alias And AssertTrue Between BinaryPredicate CaseWhen Cast Coalesce Collate CommonExpressionDef
CommonExpressionRef CreateArray CreateMap CreateNamedStruct DropField EqualNull EqualNullSafe
EqualTo Exists GetArrayItem GetArrayStructFields GetMapValue GetStructField GreaterThan
GreaterThanOrEqual Greatest Grouping GroupingID If In InSubquery IsNaN IsNotNull IsNull KnownNotNull
KnownNullable LambdaFunction LateralSubquery Least LessThan LessThanOrEqual ListQuery NaNvl Not
NullIf NullIfResult NullIfZero Nvl Nvl2 Or OuterReference RaiseError ResolvedCollation
ScalarSubquery SortOrder TryEval TypeOf UpdateFields With WithField ZeroIfNull
"""
_NUMBERS = """
Abs Acos Acosh Add Asin Asinh Atan Atan2 Atanh BRound Bin BitwiseAnd BitwiseCount BitwiseGet
BitwiseNot BitwiseOr BitwiseXor Cbrt Ceil CheckOverflow Conv Cos Cosh Cot Crc32 Csc Divide
EulerNumber Exp Expm1 Factorial Floor Hex Hypot IntegralDivide Log Log10 Log1p Log2 Logarithm
MakeDecimal Multiply Murmur3Hash Pi Pmod Pow Rand Randn Remainder Rint Round RoundCeil RoundFloor
Sec ShiftLeft ShiftRight ShiftRightUnsigned Signum Sin Sinh Sqrt Subtract Tan Tanh ToDegrees
ToRadians TryAdd TryDivide TryMod TryMultiply TrySubtract UnaryMinus UnaryPositive Unhex
UnscaledValue WidthBucket XxHash64
"""
_TEXTS = """
Ascii Base64 BinaryPad BitLength Chr Concat ConcatWs Contains CsvToStructs Decode Elt Encode
EndsWith FindInSet FormatNumber FormatString GetJsonObject ILike InitCap JsonObjectKeys
JsonToStructs JsonTuple Left Length LengthOfJsonArray Levenshtein Like LikeAll LikeAny Lower
Luhncheck Mask Md5 NotLikeAll NotLikeAny OctetLength Overlay ParseUrl Quote RLike RegExpCount
RegExpExtract RegExpExtractAll RegExpInStr RegExpReplace RegExpSubStr Right SchemaOfJson Sentences
Sha1 Sha2 SoundEx SplitPart StartsWith StringDecode StringInstr StringLPad StringLocate StringRPad
StringRepeat StringReplace StringSpace StringSplit StringSplitSQL StringToMap StringTranslate
StringTrim StringTrimBoth StringTrimLeft StringTrimRight StructsToCsv StructsToJson Substring
SubstringIndex ToBinary ToCharacter ToNumber TryToBinary TryToNumber UnBase64 Upper UrlDecode
UrlEncode
"""
_TIMES = """
AddMonths ConvertTimezone DateAdd DateAddInterval DateAddYMInterval DateDiff DateFormatClass
DateFromUnixDate DateSub DatetimeSub DayName DayOfMonth DayOfWeek DayOfYear DivideDTInterval
DivideInterval DivideYMInterval Extract ExtractANSIIntervalDays ExtractANSIIntervalHours
ExtractANSIIntervalMinutes ExtractANSIIntervalMonths ExtractANSIIntervalSeconds
ExtractANSIIntervalYears ExtractIntervalDays ExtractIntervalHours ExtractIntervalMinutes
ExtractIntervalMonths ExtractIntervalSeconds ExtractIntervalYears FromUTCTimestamp FromUnixTime
GetTimestamp Hour LastDay MakeDTInterval MakeDate MakeInterval MakeTimestamp MakeYMInterval
MicrosToTimestamp MillisToTimestamp Minute Month MonthName MonthsBetween MultiplyDTInterval
MultiplyInterval MultiplyYMInterval NextDay ParseToDate ParseToTimestamp PreciseTimestampConversion
Quarter Second SecondWithFraction SecondsToTimestamp SubtractDates SubtractTimestamps TimeAdd
TimestampAdd TimestampAddInterval TimestampAddYMInterval TimestampDiff ToUTCTimestamp
ToUnixTimestamp TruncDate TruncTimestamp UnixDate UnixMicros UnixMillis UnixSeconds UnixTimestamp
WeekDay WeekOfYear Year YearOfWeek
"""
_COLLECTIONS = """
ArrayAggregate ArrayAppend ArrayCompact ArrayContains ArrayDistinct ArrayExcept ArrayExists
ArrayFilter ArrayForAll ArrayInsert ArrayIntersect ArrayJoin ArrayMax ArrayMin ArrayPosition
ArrayPrepend ArrayRemove ArrayRepeat ArraySize ArraySort ArrayTransform ArrayUnion ArraysOverlap
ArraysZip ElementAt Explode Flatten Get Inline MapConcat MapContainsKey MapEntries MapFilter
MapFromArrays MapFromEntries MapKeys MapValues MapZipWith PosExplode Reverse Sequence Size Slice
SortArray Stack TransformKeys TransformValues TryElementAt ZipWith
"""
_WINDOWS = """
CumeDist DenseRank Lag Lead NTile NthValue PercentRank Rank RowNumber SpecifiedWindowFrame
WindowExpression WindowSpecDefinition
"""
_AGGREGATES = """
AggregateExpression AnyValue ApproximatePercentile Average BitAndAgg BitOrAgg BitXorAgg BoolAnd
BoolOr CollectList CollectSet Corr Count CountIf CovPopulation CovSample First HistogramNumeric
HyperLogLogPlusPlus Kurtosis Last ListAgg Max MaxBy Median Min MinBy Mode Percentile PercentileCont
PercentileDisc PivotFirst Product Skewness StddevPop StddevSamp Sum VariancePop VarianceSamp
"""
# Values and singletons in the arguments of these classes.
_VALUES = """
expressions.Ascending$ expressions.CurrentRow$ expressions.Descending$ expressions.NullsFirst$
expressions.NullsLast$ expressions.NumericEvalContext expressions.RangeFrame$ expressions.RowFrame$
expressions.UnboundedFollowing$ expressions.UnboundedPreceding$ expressions.aggregate.Complete$
plans.Cross$ plans.FullOuter$ plans.Inner$ plans.LeftAnti$ plans.LeftOuter$ plans.LeftSemi$
plans.RightOuter$ plans.logical.DeduplicateAllColumnsAsKey$ plans.logical.DeduplicateKeyColumns
plans.logical.DeduplicateSpec plans.logical.SampleMethod$Bernoulli$
"""
_ALL = (
    (LOGICAL, _PLANS),
    *((EXPRESSIONS, names) for names in (_TERMS, _NUMBERS, _TEXTS, _TIMES, _COLLECTIONS, _WINDOWS)),
    (f"{EXPRESSIONS}aggregate.", _AGGREGATES),
    (CATALYST, _VALUES),
)

CLASSES = frozenset(place + name for place, names in _ALL for name in names.split())
"""Classes whose arguments determine what they compute."""

BY_PARTITION = frozenset((f"{EXPRESSIONS}Rand", f"{EXPRESSIONS}Randn", f"{LOGICAL}Sample"))
"""Classes that draw random numbers per partition, so that rows depend on the cluster's cores."""

CAPTURED = {
    f"{EXPRESSIONS}Cast": "legacyCastToStr",
    f"{EXPRESSIONS}CsvToStructs": "nameOfCorruptRecord",
    f"{EXPRESSIONS}In": "legacyNullInEmptyBehavior",
    f"{EXPRESSIONS}JsonToStructs": "nameOfCorruptRecord",
}
"""Settings that an expression captures when it is made, although they are not arguments."""

# Spark's own formats over Hadoop's file systems, which read only the files of a relation.
_FORMATS = (
    "binaryfile.BinaryFileFormat",
    "csv.CSVFileFormat",
    "json.JsonFileFormat",
    "orc.OrcFileFormat",
    "parquet.ParquetFileFormat",
    "text.TextFileFormat",
)
FORMATS = frozenset(
    (
        *(f"org.apache.spark.sql.execution.datasources.{name}" for name in _FORMATS),
        "org.apache.spark.ml.source.image.ImageFileFormat",
        "org.apache.spark.ml.source.libsvm.LibSVMFileFormat",
    )
)
