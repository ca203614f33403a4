#include "client/ctl/load_source.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/status.h"
#include "store/import.h"
#include "store/safetensors_header.h"

namespace ckv::ctl {

uint64_t LoadSource::token_count() const {
  uint64_t count = 0;
  for (const SourceChunk& chunk : chunks) count += chunk.info.token_count();
  return count;
}

uint64_t LoadSource::row_bytes() const { return token_count() * geometry.token_bytes(); }

namespace {

// What is no safetensors file at all is said before its first bytes are read as a length.
absl::Status CheckIsSafetensors(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::OkStatus();  // RowFile::Open says why
  std::array<char, kSafetensorsLengthBytes + 1> start{};
  in.read(start.data(), start.size());
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, start.data(), sizeof(header_bytes));
  if (in.gcount() == static_cast<std::streamsize>(start.size()) && start.back() == '{' &&
      header_bytes <= kSafetensorsHeaderBytesMax) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: not a safetensors file\n  a text is loaded with --text; ckvctl corpus load --help says "
      "what a file of rows has",
      path));
}

absl::StatusOr<RowFile> OpenRowFile(const std::string& path) {
  CKV_RETURN_IF_ERROR(CheckIsSafetensors(path));
  auto opened = RowFile::Open(path);
  if (opened.ok()) return opened;
  const std::string message(opened.status().message());
  const absl::Status named =
      message.find(path) != std::string::npos ? opened.status() : Annotate(opened.status(), path);
  if (opened.status().code() != absl::StatusCode::kInvalidArgument) return named;
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s\n  ckvctl corpus load --help says what a file of rows has%s",
      std::string(named.message()),
      message.find("'token_ids': is missing") == std::string::npos
          ? ""
          : "; one that ckvctl fetch wrote lacks\n  token_ids, since holders do not "
            "give token ids back: add them"));
}

}  // namespace

absl::StatusOr<LoadSource> OpenRowFiles(const std::vector<std::string>& paths,
                                        uint32_t chunk_tokens, uint32_t token_count_max) {
  LoadSource source;
  ChunkId parent;
  uint64_t next_position = 0;
  uint64_t tokens_left = token_count_max == 0 ? UINT64_MAX : token_count_max;
  for (size_t f = 0; f < paths.size() && tokens_left > 0; ++f) {
    CKV_ASSIGN_OR_RETURN(RowFile opened, OpenRowFile(paths[f]));
    const auto file = std::make_shared<const RowFile>(std::move(opened));
    if (f == 0) {
      source.geometry = file->geometry();
    } else if (source.geometry != file->geometry()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: another geometry than %s: %s", paths[f], paths[0],
                          DescribeDifference(file->geometry(), source.geometry)));
    }
    if (f == 0 || file->base_position() != next_position) parent = ChunkId();
    const auto token_count =
        static_cast<uint32_t>(std::min<uint64_t>(file->token_ids().size(), tokens_left));
    for (const TokenRange range : CutFixed(token_count, chunk_tokens)) {
      SourceChunk chunk;
      chunk.rows = [file = file.get(), range](uint32_t layer) {
        return file->Rows(layer, range.begin, range.end);
      };
      chunk.info = DescribeChunk(source.geometry, parent, file->base_position(), file->token_ids(),
                                 range, chunk.rows);
      parent = chunk.info.id;
      source.chunks.push_back(std::move(chunk));
    }
    tokens_left -= token_count;
    next_position = file->base_position() + token_count;
    source.owned.push_back(file);
  }
  return source;
}

absl::StatusOr<std::vector<int32_t>> ReadTextTokens(const std::string& path,
                                                    uint32_t token_count_max) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) {
    return absl::NotFoundError(absl::StrFormat("%s: no such file", path));
  }
  std::ifstream in(path, std::ios::binary);
  if (S_ISDIR(info.st_mode) || !in) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: cannot be read as a file", path));
  }
  const uint64_t limit = token_count_max == 0 ? kCorpusChunkCountMax : token_count_max;
  std::vector<int32_t> tokens;
  for (int c = in.get(); c != std::ifstream::traits_type::eof() && tokens.size() < limit;
       c = in.get()) {
    tokens.push_back(c);
  }
  if (tokens.empty()) return absl::InvalidArgumentError(absl::StrFormat("%s: empty", path));
  return tokens;
}

absl::StatusOr<LoadSource> PrefillText(std::shared_ptr<const Engine> engine,
                                       std::span<const int32_t> tokens, uint32_t chunk_tokens,
                                       WorkerPool& pool, PrefillProgress progress) {
  // A sequence reads its engine for as long as it lives, which is as long as the source.
  struct Prefilled {
    std::shared_ptr<const Engine> engine;
    std::unique_ptr<const Sequence> sequence;
  };
  CKV_ASSIGN_OR_RETURN(std::unique_ptr<const Sequence> sequence,
                       engine->Prefill(tokens, 0, pool, progress));
  LoadSource source;
  source.geometry = engine->geometry();
  ChunkId parent;
  for (const TokenRange range : CutFixed(static_cast<uint32_t>(tokens.size()), chunk_tokens)) {
    SourceChunk chunk;
    chunk.rows = [sequence = sequence.get(), range](uint32_t layer) {
      const RowView rows = sequence->rows(layer);
      return std::span(rows.data + size_t{range.begin} * rows.stride_bytes,
                       size_t{range.end - range.begin} * rows.stride_bytes);
    };
    chunk.info = DescribeChunk(source.geometry, parent, 0, tokens, range, chunk.rows);
    parent = chunk.info.id;
    source.chunks.push_back(std::move(chunk));
  }
  source.owned.push_back(
      std::make_shared<Prefilled>(Prefilled{std::move(engine), std::move(sequence)}));
  return source;
}

}  // namespace ckv::ctl
