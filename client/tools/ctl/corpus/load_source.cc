// The common part of all chunk sources, and the source of row files. In the order of a load:
// ValidateCut checks the options; Cut divides tokens into ranges; ChunkPlanner names each chunk;
// FilePlanner finds the chunk that a file continues; NewToCorpus leaves out chunks that the corpus
// has. RowFileSource opens every file and plans all chunks before it reads any row. Read then reads
// one chunk.

#include "client/tools/ctl/corpus/load_source.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <new>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "client/publish/extension.h"
#include "proto/base/status.h"
#include "store/formats/safetensors_header.h"
#include "store/memory/chunk_id.h"
#include "store/memory/token_hash.h"

namespace ckv::ctl {
namespace {

constexpr uint32_t kDocumentTokensMaxDefault = 8192;

CutSizes SizesOf(const CutOptions& options) {
  CutSizes sizes;
  if (options.chunk_tokens != 0) sizes.avg_tokens = options.chunk_tokens;
  sizes.min_tokens = options.chunk_min != 0 ? options.chunk_min : sizes.avg_tokens / 4;
  sizes.max_tokens = options.chunk_max != 0 ? options.chunk_max
                                            : std::min(sizes.avg_tokens * 4, kChunkTokenCountMax);
  return sizes;
}

}  // namespace

absl::Status ValidateCut(const CutOptions& options) {
  switch (options.policy) {
    case CutPolicy::kFixed:
      if (options.chunk_min == 0 && options.chunk_max == 0) return absl::OkStatus();
      return absl::InvalidArgumentError(
          "--chunk-min and --chunk-max are sizes of --cut content (and --chunk-max of --cut "
          "document)\n  --cut fixed takes --chunk-tokens");
    case CutPolicy::kDocument:
      if (options.chunk_tokens == 0 && options.chunk_min == 0) return absl::OkStatus();
      return absl::InvalidArgumentError(
          "--cut document cuts where documents end\n  --chunk-max limits longer ones; "
          "leave --chunk-tokens and --chunk-min out");
    case CutPolicy::kContent:
      return ValidateCutSizes(SizesOf(options));
  }
  return absl::InternalError("a cut that is not known");
}

std::vector<TokenRange> Cut(std::span<const int32_t> tokens, const CutOptions& options) {
  const auto count = static_cast<uint32_t>(tokens.size());
  if (options.policy == CutPolicy::kFixed) return CutFixed(count, options.chunk_tokens);
  if (options.policy == CutPolicy::kContent) return CutByContent(tokens, SizesOf(options));
  return CutFixed(count, options.chunk_max != 0 ? options.chunk_max : kDocumentTokensMaxDefault);
}

uint32_t ChunkTokensOf(const Corpus& corpus, bool standalone, uint32_t otherwise) {
  absl::flat_hash_set<ChunkId> followed;
  for (const ChunkPlacement& chunk : corpus.chunks) followed.insert(chunk.parent());
  uint32_t longest = 0, longest_count = 0;
  std::optional<uint32_t> cut;
  for (const ChunkPlacement& chunk : corpus.chunks) {
    longest_count = chunk.token_count == longest  ? longest_count + 1
                    : chunk.token_count > longest ? 1
                                                  : longest_count;
    longest = std::max(longest, chunk.token_count);
    if (!followed.contains(chunk.id)) continue;
    if (cut && *cut != chunk.token_count) return otherwise;
    cut = chunk.token_count;
  }
  if (cut) return *cut;
  // Standalone chunks have no parent. Two of the greatest size are no coincidence.
  if (standalone && longest_count > 1) return longest;
  return std::max(longest, otherwise);
}

absl::StatusOr<std::vector<uint32_t>> NewToCorpus(const CutOptions& cut,
                                                  const ChunkSource& source) {
  const Corpus& corpus = *cut.extended;
  CKV_RETURN_IF_ERROR(CheckSameGeometry(corpus, source.geometry()));
  absl::StatusOr<std::vector<uint32_t>> fresh = NewChunks(corpus, source);
  if (fresh.ok()) {
    const absl::Status once = CheckNoTextTwice(corpus, source, *fresh, cut.key, cut.read_tokens);
    if (once.ok()) return fresh;
    fresh = once;
  }
  if (!absl::IsFailedPrecondition(fresh.status())) return fresh;
  return absl::FailedPreconditionError(
      absl::StrFormat("%s\n  a text that grew or changed, or is cut in another way, is loaded with "
                      "--replace",
                      fresh.status().message()));
}

ChunkPlanner::ChunkPlanner(const Geometry& geometry, const TenantKey& key,
                           std::vector<PlannedChunk>* chunks)
    : fingerprint_(ModelFingerprint(geometry)), key_(key), chunks_(*chunks) {}

ChunkPlanner::Name ChunkPlanner::NameOf(const ChunkId& parent, uint64_t position,
                                        std::span<const int32_t> tokens,
                                        std::span<const ExtraKey> extra_keys) const {
  const ChunkId plain = ComputeChunkId(fingerprint_, parent, position, tokens, extra_keys);
  const VerificationTag verification_tag = VerificationTagOf(plain, key_);
  return {TaggedChunkId(plain, verification_tag), verification_tag};
}

absl::Status ChunkPlanner::Add(const ChunkId& parent, uint64_t position,
                               std::span<const int32_t> tokens,
                               std::span<const ExtraKey> extra_keys, const std::string& origin) {
  CKV_RETURN_IF_ERROR(Annotate(ValidateExtraKeys(extra_keys, tokens.size()), origin));
  const auto [id, verification_tag] = NameOf(parent, position, tokens, extra_keys);
  const auto [there, added] = origins_.emplace(id, origin);
  if (!added) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: has a chunk of the same tokens as %s, and a corpus has each chunk once\n  take one of "
        "them out",
        origin, there->second));
  }
  chunks_.push_back({id, parent, position, static_cast<uint32_t>(tokens.size()), verification_tag,
                     TokenHashOf(tokens, key_, extra_keys),
                     ExtraKeys(extra_keys.begin(), extra_keys.end())});
  return absl::OkStatus();
}

namespace {

// Rows that are one chunk by themselves.
absl::Status CheckStandalone(const std::string& path, uint64_t base_position, size_t chunk_count) {
  if (base_position != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: its rows were made from position %d on, and a standalone chunk's are made alone at "
        "position 0\n  prefill its tokens by themselves and write the rows with base_position 0, "
        "or leave --standalone out",
        path, base_position));
  }
  if (chunk_count != 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: would be cut into %d chunks, and rows behind the first saw those before them\n  "
        "with --standalone a file is one chunk: write one a chunk, or leave out what cuts it",
        path, chunk_count));
  }
  return absl::OkStatus();
}

}  // namespace

FilePlanner::FilePlanner(const Geometry& geometry, const CutOptions& cut, uint32_t token_count_max,
                         std::vector<PlannedChunk>* chunks)
    : cut_(cut),
      planner_(geometry, cut.key, chunks),
      chunks_(*chunks),
      tokens_left_(token_count_max == 0 ? UINT64_MAX : token_count_max) {}

// Returns the chunk that rows from `position` on follow.
absl::StatusOr<ChunkId> FilePlanner::ParentAt(const std::string& path, uint64_t position,
                                              std::span<const int32_t> first_tokens,
                                              std::span<const ExtraKey> extra_keys) const {
  if (cut_.extended == nullptr || cut_.standalone) return ChunkId();
  // Put before, for example by a load whose answer was lost: the chunk keeps its place.
  const TokenHash token_hash = TokenHashOf(first_tokens, cut_.key, extra_keys);
  for (const ChunkPlacement& chunk : cut_.extended->chunks) {
    if (chunk.position != position || chunk.token_count != first_tokens.size()) continue;
    if (chunk.token_hash() != TokenHash() && chunk.token_hash() != token_hash)
      continue;  // spares the hash
    if (planner_.NameOf(chunk.parent(), position, first_tokens, extra_keys).id == chunk.id)
      return chunk.parent();
  }
  if (position == 0) return ChunkId();
  return EndAt(path, position);
}

// Returns the chunk of the extended corpus that ends at `position` and that no chunk follows.
absl::StatusOr<ChunkId> FilePlanner::EndAt(const std::string& path, uint64_t position) const {
  const Corpus& corpus = *cut_.extended;
  absl::flat_hash_set<ChunkId> followed;
  for (const ChunkPlacement& chunk : corpus.chunks) followed.insert(chunk.parent());
  std::vector<ChunkId> ends;
  std::optional<ChunkId> taken;
  for (const ChunkPlacement& chunk : corpus.chunks) {
    if (chunk.position + chunk.token_count != position) continue;
    if (followed.contains(chunk.id)) {
      taken = chunk.id;
    } else {
      ends.push_back(chunk.id);
    }
  }
  if (ends.size() == 1) return ends.front();
  if (ends.size() > 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: its rows begin at position %d, where %d texts of corpus '%s' end: it is ambiguous "
        "which text they follow\n  an engine that puts them names the chunk (ckv_put, "
        "RequesterService.Put)",
        path, position, ends.size(), corpus.name));
  }
  if (taken) return *taken;  // refused by NewChunks, which returns the reason
  const ChunkPlacement last = corpus.chunks.empty() ? ChunkPlacement() : corpus.chunks.back();
  const uint64_t end = last.position + last.token_count;
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: its rows begin at position %d, and no chunk of corpus '%s' ends there: its last chunk "
      "ends at %d\n  rows that continue it must have base_position %d; others begin at 0",
      path, position, corpus.name, end, end));
}

absl::StatusOr<std::vector<TokenRange>> FilePlanner::Add(const std::string& path,
                                                         uint64_t base_position,
                                                         std::span<const int32_t> token_ids,
                                                         std::span<const ExtraKey> extra_keys) {
  const auto tokens = token_ids.first(std::min<uint64_t>(token_ids.size(), tokens_left_));
  std::vector<TokenRange> ranges = Cut(tokens, cut_);
  if (cut_.standalone) CKV_RETURN_IF_ERROR(CheckStandalone(path, base_position, ranges.size()));
  if (cut_.standalone || base_position != next_position_ || chunks_.empty()) {
    const size_t first = ranges.empty() ? 0 : ranges.front().end - ranges.front().begin;
    CKV_ASSIGN_OR_RETURN(parent_, ParentAt(path, base_position, tokens.first(first),
                                           ExtraKeysOf(extra_keys, 0, first)));
  }
  for (const TokenRange range : ranges) {
    CKV_RETURN_IF_ERROR(planner_.Add(parent_, base_position + range.begin,
                                     tokens.subspan(range.begin, range.end - range.begin),
                                     ExtraKeysOf(extra_keys, range.begin, range.end), path));
    parent_ = chunks_.back().id;
  }
  tokens_left_ -= tokens.size();
  next_position_ = base_position + tokens.size();
  return ranges;
}

namespace {

// Refuses a file that is no safetensors file at all before its first bytes are read as a length.
absl::Status CheckIsSafetensors(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::OkStatus();  // RowFile::Open returns the reason
  std::array<char, kSafetensorsLengthBytes + 1> start{};
  in.read(start.data(), start.size());
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, start.data(), sizeof(header_bytes));
  if (in.gcount() == static_cast<std::streamsize>(start.size()) && start.back() == '{' &&
      header_bytes <= kSafetensorsHeaderBytesMax) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: not a safetensors file\n  a text is loaded with --text, token ids from FILE.jsonl; "
      "ckvctl corpus load --help describes a file of rows",
      path));
}

bool IsFolder(const std::string& path) {
  struct stat about;
  return stat(path.c_str(), &about) == 0 && S_ISDIR(about.st_mode);
}

absl::StatusOr<RowFile> OpenRowFile(const std::string& path) {
  const bool folder = IsFolder(path);
  if (!folder) CKV_RETURN_IF_ERROR(CheckIsSafetensors(path));
  auto opened = folder ? RowFile::OpenFolder(path, FileReading::kParts)
                       : RowFile::Open(path, FileReading::kParts);
  if (opened.ok()) return opened;
  const std::string message(opened.status().message());
  absl::Status named =
      message.find(path) != std::string::npos ? opened.status() : Annotate(opened.status(), path);
  if (opened.status().code() != absl::StatusCode::kInvalidArgument) return named;
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s\n  ckvctl corpus load --help describes a file of rows%s", std::string(named.message()),
      message.find("'token_ids': is missing") == std::string::npos
          ? ""
          : "\n  one that ckvctl fetch wrote lacks token_ids, since a requester does not give "
            "token ids: ckvctl corpus export writes them"));
}

class RowFileSource final : public ChunkSource {
 public:
  static absl::StatusOr<std::unique_ptr<ChunkSource>> Open(const std::vector<std::string>& paths,
                                                           const CutOptions& cut,
                                                           uint32_t token_count_max);
  std::span<const int32_t> TokensOf(uint32_t ordinal) const override {
    const auto& [file, range] = places_.at(ordinal);
    return file->token_ids().subspan(range.begin, range.end - range.begin);
  }
  absl::StatusOr<SourceChunk> Read(uint32_t ordinal) override;
  absl::Status CheckUnchanged() const override;

 private:
  struct Place {
    std::shared_ptr<const RowFile> file;
    TokenRange range;
  };
  std::vector<Place> places_;  // one for each chunk
};

absl::StatusOr<std::unique_ptr<ChunkSource>> RowFileSource::Open(
    const std::vector<std::string>& paths, const CutOptions& cut, uint32_t token_count_max) {
  auto source = std::make_unique<RowFileSource>();
  std::optional<FilePlanner> planner;
  for (size_t f = 0; f < paths.size() && !(planner && planner->full()); ++f) {
    CKV_ASSIGN_OR_RETURN(RowFile opened, OpenRowFile(paths[f]));
    const auto file = std::make_shared<const RowFile>(std::move(opened));
    if (f == 0) {
      source->geometry_ = file->geometry();
      planner.emplace(source->geometry_, cut, token_count_max, &source->chunks_);
    } else if (source->geometry_ != file->geometry()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: another geometry than %s: %s", paths[f], paths[0],
                          DescribeDifference(file->geometry(), source->geometry_)));
    }
    CKV_ASSIGN_OR_RETURN(
        const std::vector<TokenRange> ranges,
        planner->Add(paths[f], file->base_position(), file->token_ids(), file->extra_keys()));
    for (const TokenRange range : ranges) source->places_.push_back({file, range});
  }
  return source;
}

absl::StatusOr<SourceChunk> RowFileSource::Read(uint32_t ordinal) {
  const auto& place = places_.at(ordinal);
  const RowFile& file = *place.file;
  const TokenRange range = place.range;
  SourceChunk chunk;
  CKV_RETURN_IF_ERROR(HoldRows(
      ChunkLayout(geometry_, range.end - range.begin),
      [&](uint32_t tensor, std::byte* to) {
        return file.Copy(file.Rows(tensor, range.begin, range.end), to);
      },
      chunk));
  chunk.info = DescribeChunk(geometry_, chunks_[ordinal].parent, file.base_position(),
                             file.token_ids(), range, chunk.rows, file.extra_keys());
  NameAsPlanned(ordinal, chunk.info);
  return chunk;
}

absl::Status RowFileSource::CheckUnchanged() const {
  const RowFile* last = nullptr;
  for (const Place& place : places_) {
    if (place.file.get() != last) CKV_RETURN_IF_ERROR(place.file->CheckUnchanged());
    last = place.file.get();
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status HoldRows(const ChunkLayout& layout,
                      absl::FunctionRef<absl::Status(uint32_t tensor, std::byte* to)> read,
                      SourceChunk& chunk) {
  const size_t bytes = layout.total_bytes();
  const std::shared_ptr<std::byte[]> rows(new (std::nothrow) std::byte[bytes]);
  if (rows == nullptr) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "no memory for a chunk of %d bytes\n  smaller chunks take less: --chunk-tokens", bytes));
  }
  for (uint32_t t = 0; t < layout.tensor_count(); ++t)
    CKV_RETURN_IF_ERROR(read(t, rows.get() + layout.begin(t)));
  chunk.rows = [all = rows.get(), layout](uint32_t tensor) {
    return std::span<const std::byte>(all + layout.begin(tensor), layout.bytes(tensor));
  };
  chunk.owned = rows;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ChunkSource>> OpenRowFiles(const std::vector<std::string>& paths,
                                                          const CutOptions& cut,
                                                          uint32_t token_count_max) {
  return RowFileSource::Open(paths, cut, token_count_max);
}

}  // namespace ckv::ctl
