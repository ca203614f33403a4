// The calls of a requester as structs: what each takes and what it reports. client/requester.h
// makes the calls. Everything below client/requester.h includes this file instead.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "attention/grade.h"
#include "attention/partial.h"
#include "proto/base/clock.h"
#include "proto/base/trace_context.h"
#include "proto/corpus.h"
#include "proto/geometry.h"
#include "proto/kernel_target.h"
#include "proto/selection.h"

namespace ckv {

struct MappedLayout;  // transport/wire.h

// The largest offset and position: beyond any context, and the difference of two still fits.
inline constexpr int64_t kOffsetMax = int64_t{1} << 40;

// Names one chunk of a call, and how far it stands from its canonical position in this request's
// context. Its queries are rotated by -offset. Chunks with the same offset share one rotated copy.
struct ChunkUse {
  uint32_t ordinal = 0;  // ordinal in the corpus
  int64_t offset = 0;    // positions, at most kOffsetMax either way
};

// The most selected indices of one call: 2,048 rows for each of 8,192 tokens.
inline constexpr uint64_t kSelectionIndexCountMax = uint64_t{1} << 24;

// The most corpora of one context.
inline constexpr uint32_t kContextPartCountMax = 16;

// The chunks of one corpus that a context attends. Borrowed while the context is made.
struct ContextPart {
  std::shared_ptr<const Corpus> corpus;
  // If empty, every chunk of the corpus at its canonical position. A chunk listed twice is
  // InvalidArgument.
  std::span<const ChunkUse> chunks;
};

// Rows of the caller's, attended on its thread while the holders compute: a sequence's own suffix.
// They never travel. Their RoPE bands stand at the positions that the query rows count from, as in
// the caller's own cache; nothing is rotated. Borrowed until the call ends.
struct OwnRows {
  // Rows of the context's geometry and the call's layer. They may lie in blocks of the caller's
  // paged cache, and are attended there (attention/partial.h). Every block of the table is below
  // block_count.
  RowView rows;
  // u32 [segment's row_count]: the query row i sees the first visible[i] rows. If null, every query
  // row sees all.
  const uint32_t* visible = nullptr;
  uint32_t block_count = 0;  // blocks of the cache that paged rows lie in
};

inline constexpr size_t kOwnRowsCountMax = 16;

// How many rows of a context query rows see: the first ones, as a selection counts them. A causal
// mask is one. Borrowed.
//
// The answer is exact. A chunk that a query row sees whole is attended as without a limit. A chunk
// in which a limit falls is attended as a selection of its first rows: 4 bytes a row travel with
// the queries. Each run of query rows with one limit is a segment of the wire, which names each
// chunk it sees in 32 bytes. So one limit for all heads of a token costs less than one a row.
struct RowLimits {
  // [ceil(rows / group_rows)]: query rows of the group g see the rows before limits[g]. With 0 they
  // see none. A limit beyond the context is InvalidArgument. So are limits beside a selection.
  const uint32_t* limits = nullptr;
  uint32_t group_rows = 1;  // query rows that share a limit, as the heads of one token

  bool present() const { return limits != nullptr; }
};

class Context;  // client/context/context.h

// Consecutive query rows of one context.
struct Segment {
  uint32_t row_begin = 0;
  uint32_t row_count = 0;
  const Context* context = nullptr;
  // Indices count the rows of the context, chunk by chunk in the order of its spec. -1 is skipped;
  // any other index outside the context is InvalidArgument. Lists are per group of the segment's
  // rows. Own rows are not selected: all visible ones are attended.
  Selection selection = {};
  // Groups are of the segment's rows. Own rows have limits of their own.
  RowLimits row_limits = {};
  // Merged after the context's chunks, one after another. At most kOwnRowsCountMax.
  std::span<const OwnRows> own = {};
};

// Attends one layer for one or many contexts of one geometry. The rows of all contexts that one
// holder attends travel together. It borrows everything it points to until the call ends.
//
// q, own rows and the answer may be in any memory that the requester's backend reaches, and come
// after a stream (attention/partial.h). Selections and limits are host memory. A submitted call
// comes after the work that was on q's stream at Submit, or when a failed attempt is made again. It
// comes after the work that was on the others at the first Poll that finds the queries posted. If a
// stream is of another backend, a blocking call waits for it, and a polled one looks at Ready.
struct LayerCall {
  uint32_t layer = 0;
  QueryView q;  // bf16 [count, d_qk], count <= kAttendRowCountMax
  // One after another, they cover the rows of q. All of them together are over at most 256 corpora.
  std::span<const Segment> segments;
  // The type of the partials on the wire. Answers are promised to be exactly equal only with kF32.
  PartialDtype wire = PartialDtype::kBf16;
  // How exactly holders and this requester compute (attention/grade.h). The default is `wire`'s
  // own.
  Grade grade = Grade::kDefault;
  // As in AttendCall.
  bool allow_approximate = false;
  // Names the call. It travels with every frame, and is in the text of an error.
  TraceContext trace = {};
  Instant deadline = kInstantMax;
};

// Attends query rows over chunks of one corpus: a call of one segment, whose context is made for
// it. It borrows everything it points to until the call returns.
struct AttendCall {
  std::shared_ptr<const Corpus> corpus;
  // The chunks to attend. If empty, the call attends every chunk of the corpus, at canonical
  // positions. A chunk listed twice is InvalidArgument.
  std::span<const ChunkUse> chunks;
  uint32_t layer = 0;
  QueryView q;  // bf16 [count, d_qk], count <= kAttendRowCountMax
  // Indices count the rows of `chunks`, one after another in their order. -1 is skipped; any other
  // index outside the chunks is InvalidArgument, and nothing is sent.
  Selection selection;
  RowLimits row_limits;  // they count the rows of `chunks`, as the selection does
  // The type of the partials on the wire. Answers are promised to be exactly equal only with kF32.
  PartialDtype wire = PartialDtype::kBf16;
  // How exactly holders and this requester compute (attention/grade.h). The default is `wire`'s
  // own.
  Grade grade = Grade::kDefault;
  // Allows a holder whose exact rows are on disk to answer from fp8 copies in memory, if it has
  // them. The report says whether one did. Otherwise an answer is exact or an error.
  bool allow_approximate = false;
  TraceContext trace = {};  // as in LayerCall
  Instant deadline = kInstantMax;
};

// Returns where the answer of a call is to be written: f32 o [q.count, d_v], m, l. It may be
// called more than once and must return the same place.
using AttendRoom = absl::FunctionRef<PartialView()>;

inline constexpr uint32_t kAttendRowCountMax = 1u << 16;

struct AttendReport {
  uint32_t holder_count = 0;
  uint64_t bytes_sent = 0;  // frames on the lanes, headers and rows together
  uint64_t bytes_received = 0;
  uint64_t compute_ns_max = 0;  // kernel time of the slowest holder
  bool approximate = false;     // some rows were fp8 copies, which the call must allow
  // The grade that was asked for; never kDefault. Vector targets answer exactly in all
  // grades (attention/grade.h).
  Grade grade = Grade::kExact;
  // The partials were made by different kernel targets, own rows' among them, or by a holder that
  // does not say which.
  bool targets_differ = false;
  // The kernel target of all partials, if they had one.
  KernelTargetId kernel_target = KernelTargetId::kUnknown;
  // Any other placement, replica or batch of this kernel target gives the same bits. The partials
  // were f32 and of one target, and none was of an fp8 copy.
  bool same_bits_anywhere = false;
  // Pairs of a query row and a row that it attended: of chunks that holders attended, of near
  // chunks, and of the caller's own rows.
  uint64_t routed_pairs = 0, near_pairs = 0, own_pairs = 0;
  // Rows that came near for the call's contexts since their last report, pulled, mapped or made
  // anew: bytes.
  uint64_t pulled_bytes = 0;
  // From the first attempt to the answer. `lost` is the part before the last attempt, spent in
  // failed attempts and in waits for holders.
  Duration elapsed{0};
  Duration lost{0};
  uint32_t failed_attempt_count = 0;
};

// A slice of the latent rows: bytes [begin, begin + bytes) of every row, both multiples of 4.
// Holders gather slices before they send them. The number of transfers depends on the bytes alone,
// not on the number of heads or layers.
struct ColumnRange {
  uint32_t begin = 0;
  uint32_t bytes = 0;  // if 0, begin is 0 too and rows are whole
};

// Fetches the rows of a range of chunks and layers. Ranges are half open, [begin, end), and not
// empty. An end of 0 does not mean "to the end" here, as it does in the gRPC messages. To fetch to
// the end, use corpus->chunks.size() and corpus->geometry.layers.
struct FetchCall {
  std::shared_ptr<const Corpus> corpus;
  uint32_t chunk_begin = 0;
  uint32_t chunk_end = 0;
  uint32_t layer_begin = 0;
  uint32_t layer_end = 0;
  // The position at which the first chunk's first token is to stand; bands are rotated by the
  // difference. If unset, rows stay at their canonical positions.
  std::optional<uint64_t> position;
  // The slice of each row to fetch. With a position, it holds all of the RoPE band or none of it.
  ColumnRange columns;
  TraceContext trace = {};  // as in LayerCall
  Instant deadline = kInstantMax;
};

// Fetches rows chosen by index, for example by a sparse-attention indexer. Rows come at their
// canonical positions and are never rotated, because they have no offset in common.
struct SelectionCall {
  std::shared_ptr<const Corpus> corpus;
  // Indices count the rows of these chunks, one after another. The range is not empty.
  uint32_t chunk_begin = 0;
  uint32_t chunk_end = 0;
  // indices[i] selects rows of layer layer_begin + i, in any order. An index may repeat and a list
  // may be empty. All lists together hold at most kSelectionIndexCountMax (2^24) indices.
  uint32_t layer_begin = 0;
  std::span<const std::span<const int32_t>> indices;
  ColumnRange columns;
  TraceContext trace = {};  // as in LayerCall
  Instant deadline = kInstantMax;
};
// Rows of one layer of one chunk: rows[i] answers the layer's index number ordinals[i].
struct SelectedRows {
  uint32_t layer = 0;
  uint32_t chunk = 0;
  std::span<const uint32_t> ordinals;  // rising; borrowed until the sink returns
  std::span<const std::byte> rows;     // [ordinals.size()][row_bytes or columns.bytes]; borrowed
};

// A run of rows of one layer of one chunk, in token order.
struct RowRun {
  uint32_t chunk = 0;  // ordinal in the corpus
  uint32_t layer = 0;
  uint32_t token_begin = 0;
  uint32_t token_count = 0;
};
struct FetchedRows : RowRun {
  // [token_count][row_bytes, or columns.bytes]; borrowed until the sink returns
  std::span<const std::byte> rows;
  // kPinned if a device reads them where they lie. A processor reads them all the same.
  MemoryKind memory = MemoryKind::kHost;
};

struct FetchIntoReport {
  uint64_t rows_spliced = 0;  // rows of all layers; a row that came twice counts twice
  uint32_t reopen_count = 0;  // attempts after the first, over a new lane or at a replica
  Duration elapsed{0};
};

struct ExplainCall {
  std::shared_ptr<const Corpus> corpus;
  // Ordinals in the corpus, each at most once. If there are none, all chunks of the corpus.
  std::vector<uint32_t> chunks;
  uint32_t query_rows = 0;  // M_q of one request: tokens x heads
  uint32_t steps = 1;       // decode steps; 0 counts as 1
  uint32_t agents = 1;      // agents that share the chunks here; 0 counts as 1
  uint32_t select = 0;      // rows a query attends; 0 means all
  PartialDtype wire = PartialDtype::kBf16;
  // Tokens that still fit the engine's cache. If unset, the chunks are taken to fit.
  std::optional<uint64_t> cache_room_tokens;
  Instant deadline = kInstantMax;
};

struct MapCall {
  std::shared_ptr<const Corpus> corpus;
  uint32_t chunk = 0;  // ordinal in the corpus
  Instant deadline = kInstantMax;
  // The caller can do without. The holder is asked once, and not doubted if it is slow or refuses.
  bool may_be_refused = false;
};

// A chunk's rows in its holder's memory, mapped read-only without a copy. Nobody writes or frees
// the rows any more, even if the holder or the requester goes away. The memory stays in use until
// this object is destroyed. Rows are at their canonical positions.
class MappedChunk {
 public:
  MappedChunk() = default;  // has no layers
  MappedChunk(MappedChunk&& other) noexcept;
  MappedChunk& operator=(MappedChunk&& other) noexcept;
  ~MappedChunk();

  // Returns the rows of layer l < geometry.layers: [token_count][row_bytes], 64-byte aligned. They
  // stay valid as long as this object lives.
  std::span<const std::byte> layer(uint32_t l) const;
  uint32_t token_count() const { return token_count_; }

 private:
  friend absl::StatusOr<MappedChunk> MapDescriptor(int fd, const MappedLayout& layout,
                                                   const Geometry& geometry, uint32_t chunk_tokens);
  std::span<const std::byte> memory_;  // unmapped by the destructor
  uint64_t layer_bytes_ = 0;
  uint64_t layer_stride_ = 0;
  uint32_t layers_ = 0;
  uint32_t token_count_ = 0;
};

}  // namespace ckv
