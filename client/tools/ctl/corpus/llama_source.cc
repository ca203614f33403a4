// Reads chunks from sequence states of llama.cpp. Open plans: it opens each state, checks its shape
// against the geometry, takes the token ids from the state or a .npy file, and cuts them. Read then
// returns one chunk: it reads each layer's keys, turns f16 into bf16, and describes the chunk.

#include "client/tools/ctl/corpus/llama_source.h"

#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/tools/ctl/corpus/npy_source.h"
#include "proto/base/status.h"
#include "store/formats/llama_state.h"

namespace ckv::ctl {
namespace {

// A state and its token ids, which are in the state or in a separate file.
struct SavedSequence {
  LlamaState state;
  std::vector<int32_t> token_ids;
  ExtraKeys extra_keys;
};

absl::StatusOr<std::shared_ptr<const SavedSequence>> OpenSequence(const std::string& path,
                                                                  const LlamaOptions& options) {
  CKV_ASSIGN_OR_RETURN(LlamaState state, LlamaState::Open(path, FileReading::kParts));
  std::vector<int32_t> ids(state.token_ids().begin(), state.token_ids().end());
  if (ids.empty() && options.token_ids.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: has no token ids, which name its chunks: it needs --token-ids\n  or save it with "
        "llama_state_seq_save_file and its tokens",
        path));
  }
  if (!ids.empty() && !options.token_ids.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: has token ids itself\n  leave --token-ids out", path));
  }
  if (ids.empty()) {
    CKV_ASSIGN_OR_RETURN(ids, ReadNpyTokenIds(options.token_ids, state.token_count()));
  }
  CKV_ASSIGN_OR_RETURN(ExtraKeys keys, ReadExtraKeysFile(options.extra_keys, ids.size()));
  return std::make_shared<const SavedSequence>(
      SavedSequence{std::move(state), std::move(ids), std::move(keys)});
}

class LlamaSource final : public ChunkSource {
 public:
  static absl::StatusOr<std::unique_ptr<ChunkSource>> Open(const std::vector<std::string>& paths,
                                                           const LlamaOptions& options,
                                                           const CutOptions& cut,
                                                           uint32_t token_count_max);
  std::span<const int32_t> TokensOf(uint32_t ordinal) const override {
    const auto& [sequence, range] = places_.at(ordinal);
    return std::span(sequence->token_ids).subspan(range.begin, range.end - range.begin);
  }
  absl::StatusOr<SourceChunk> Read(uint32_t ordinal) override;
  absl::Status CheckUnchanged() const override;

 private:
  struct Place {
    std::shared_ptr<const SavedSequence> sequence;
    TokenRange range;
  };
  absl::Status CheckShape(const std::string& path, const LlamaState& state) const;
  // Reads a layer's rows to `to`, keys of f16 as bf16.
  absl::Status ReadLayer(const Place& place, uint32_t layer, std::byte* to) const;

  std::vector<Place> places_;  // one for each chunk
};

absl::Status LlamaSource::CheckShape(const std::string& path, const LlamaState& state) const {
  if (geometry_.dtype != RowDtype::kBf16) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: keys become rows of bf16, and the geometry has others: %s", path,
                        geometry_.ToString()));
  }
  if (state.layer_count() == geometry_.layers && state.row_bytes() == geometry_.row_bytes()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: %d layers with keys of %d values, and the geometry has %d of %d: %s\n  a model without "
      "MLA has other keys, and ckv holds rows of MLA",
      path, state.layer_count(), state.row_bytes() / 2, geometry_.layers, geometry_.d_qk,
      geometry_.ToString()));
}

absl::StatusOr<std::unique_ptr<ChunkSource>> LlamaSource::Open(
    const std::vector<std::string>& paths, const LlamaOptions& options, const CutOptions& cut,
    uint32_t token_count_max) {
  if (options.geometry.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: a sequence state does not name its model: it needs --geometry\n  ckvctl "
        "corpus load --help describes it",
        paths.front()));
  }
  if ((!options.token_ids.empty() || !options.extra_keys.empty()) && paths.size() != 1) {
    return absl::InvalidArgumentError(
        "--token-ids and --extra-keys are for one sequence state: load one at a time");
  }
  auto source = std::make_unique<LlamaSource>();
  CKV_ASSIGN_OR_RETURN(source->geometry_, ReadGeometryWithoutIndex(options.geometry));
  FilePlanner planner(source->geometry_, cut, token_count_max, &source->chunks_);
  for (size_t f = 0; f < paths.size() && !planner.full(); ++f) {
    CKV_ASSIGN_OR_RETURN(const std::shared_ptr<const SavedSequence> sequence,
                         OpenSequence(paths[f], options));
    CKV_RETURN_IF_ERROR(source->CheckShape(paths[f], sequence->state));
    CKV_ASSIGN_OR_RETURN(const std::vector<TokenRange> ranges,
                         planner.Add(paths[f], sequence->state.base_position(), sequence->token_ids,
                                     sequence->extra_keys));
    for (const TokenRange range : ranges) source->places_.push_back({sequence, range});
  }
  return source;
}

absl::Status LlamaSource::ReadLayer(const Place& place, uint32_t layer, std::byte* to) const {
  const LlamaState& state = place.sequence->state;
  const std::span<const std::byte> rows = state.Rows(layer, place.range.begin, place.range.end);
  if (state.key_type() == LlamaKeyType::kBf16) return state.Copy(rows, to);
  std::vector<std::byte> halves(rows.size());
  CKV_RETURN_IF_ERROR(state.Copy(rows, halves.data()));
  Bf16FromHalves(halves.data(), reinterpret_cast<uint16_t*>(to), halves.size() / 2);
  return absl::OkStatus();
}

absl::StatusOr<SourceChunk> LlamaSource::Read(uint32_t ordinal) {
  const Place& place = places_.at(ordinal);
  const auto& [sequence, range] = place;
  SourceChunk chunk;
  CKV_RETURN_IF_ERROR(HoldRows(
      ChunkLayout(geometry_, range.end - range.begin),
      [&](uint32_t layer, std::byte* to) { return ReadLayer(place, layer, to); }, chunk));
  chunk.info = DescribeChunk(geometry_, chunks_[ordinal].parent, sequence->state.base_position(),
                             sequence->token_ids, range, chunk.rows, sequence->extra_keys);
  NameAsPlanned(ordinal, chunk.info);
  return chunk;
}

absl::Status LlamaSource::CheckUnchanged() const {
  const SavedSequence* last = nullptr;
  for (const Place& place : places_) {
    if (place.sequence.get() != last) CKV_RETURN_IF_ERROR(place.sequence->state.CheckUnchanged());
    last = place.sequence.get();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChunkSource>> OpenLlamaStates(const std::vector<std::string>& paths,
                                                             const LlamaOptions& options,
                                                             const CutOptions& cut,
                                                             uint32_t token_count_max) {
  return LlamaSource::Open(paths, options, cut, token_count_max);
}

}  // namespace ckv::ctl
