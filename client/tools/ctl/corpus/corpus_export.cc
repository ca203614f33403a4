// ckvctl corpus export: the rows of a corpus back into files that corpus load takes. RunExport, in
// order: reads the corpus; SplitIntoFiles makes one file of each sequence of chunks; Exporter
// writes one file after another. For each file it reads all extra keys first, because the header
// has them. Then it reads the rows of each chunk from its holders, one after another until one
// succeeds (TryHolders).

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_format.h"
#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/chunk_range.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/corpus/chunk_reader.h"
#include "client/tools/ctl/corpus/tensor_files.h"
#include "proto/base/status.h"
#include "store/formats/extra_keys_json.h"
#include "store/formats/import.h"
#include "store/formats/safetensors.h"

namespace ckv::ctl {
namespace {

struct ExportOptions {
  std::string corpus;
  std::string chunks;
  std::string out;
};

// One file: chunks that follow each other.
struct ExportFile {
  std::string path;
  std::vector<uint32_t> ordinals;
  uint64_t token_count = 0;
};

bool Follows(const ChunkPlacement& next, const ChunkPlacement& chunk) {
  return next.parent() == chunk.id && next.position == chunk.position + chunk.token_count;
}

// "rows.safetensors" is "rows-00002-of-00003.safetensors" as the second of three.
std::string PathOf(const std::string& out, size_t index, size_t count) {
  if (count == 1) return out;
  const std::filesystem::path path(out);
  return (path.parent_path() / absl::StrFormat("%s-%05d-of-%05d%s", path.stem().string(), index + 1,
                                               count, path.extension().string()))
      .string();
}

std::vector<ExportFile> SplitIntoFiles(const Corpus& corpus, const std::vector<uint32_t>& ordinals,
                                       const std::string& out) {
  std::vector<ExportFile> files;
  for (const uint32_t ordinal : ordinals) {
    const ChunkPlacement& chunk = corpus.chunks[ordinal];
    if (files.empty() || !Follows(chunk, corpus.chunks[files.back().ordinals.back()])) {
      files.emplace_back();
    }
    files.back().ordinals.push_back(ordinal);
    files.back().token_count += chunk.token_count;
  }
  for (size_t i = 0; i < files.size(); ++i) files[i].path = PathOf(out, i, files.size());
  return files;
}

class Exporter {
 public:
  Exporter(const Ctl& ctl, const Corpus& corpus, const std::vector<Member>& members,
           Progress* progress)
      : ctl_(ctl), corpus_(corpus), progress_(*progress) {
    for (const Member& member : members) {
      if (member.role == MemberRole::kHolder) holders_.emplace(member.id.name, member);
    }
  }

  absl::Status Write(const ExportFile& file);

 private:
  // Calls `from` with one holder of the chunk after another, until one succeeds or `fatal` is set.
  absl::Status TryHolders(uint32_t ordinal, absl::FunctionRef<absl::Status(const Member&)> from,
                          const absl::Status& fatal);
  absl::Status WriteChunk(uint32_t ordinal, uint64_t first_token, SafetensorsWriter& writer);
  // The extra keys of all chunks of a file, counted from its first token. The header of the file
  // has them, so they are fetched before the rows.
  absl::StatusOr<ExtraKeys> KeysOf(const ExportFile& file);
  absl::StatusOr<ChunkInfo> InfoFrom(const HolderCalls& calls, const ChunkPlacement& chunk) const;
  HolderCalls CallsOf(const Member& holder);
  // Returns the holders to query, in that order.
  std::vector<HolderId> CandidatesOf(const ChunkPlacement& chunk) const;
  void Warn(uint32_t ordinal, const HolderId& holder, const absl::Status& status);
  // Sets `written` if the file, and not the holder, is at fault.
  absl::Status WriteFrom(const Member& holder, const ChunkPlacement& chunk, uint64_t first_token,
                         SafetensorsWriter& writer, absl::Status& written);

  const Ctl& ctl_;
  const Corpus& corpus_;
  Progress& progress_;
  std::map<std::string, Member> holders_;  // the live ones
  std::set<std::string> silent_;           // did not answer: queried last
  std::map<std::string, std::unique_ptr<v1::HolderService::StubInterface>> stubs_;
};

absl::Status Exporter::Write(const ExportFile& file) {
  const Geometry& geometry = corpus_.geometry;
  std::vector<TensorSpec> specs;
  for (uint32_t t = 0; t < geometry.tensor_count(); ++t)
    specs.push_back(RowTensorSpec(geometry, t, file.token_count));
  specs.push_back({"token_ids", TensorDtype::kI32, {file.token_count}});
  auto metadata = RowFileMetadata(geometry, corpus_.chunks[file.ordinals.front()].position);
  CKV_ASSIGN_OR_RETURN(const ExtraKeys keys, KeysOf(file));
  if (!keys.empty()) metadata["extra_keys"] = FormatExtraKeys(keys);
  CKV_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                       SafetensorsWriter::Create(file.path, metadata, specs));
  uint64_t first_token = 0;
  for (const uint32_t ordinal : file.ordinals) {
    CKV_RETURN_IF_ERROR(WriteChunk(ordinal, first_token, writer));
    first_token += corpus_.chunks[ordinal].token_count;
  }
  return std::move(writer).Finish();
}

absl::Status Exporter::WriteChunk(uint32_t ordinal, uint64_t first_token,
                                  SafetensorsWriter& writer) {
  absl::Status written;
  return TryHolders(
      ordinal,
      [&](const Member& holder) {
        return WriteFrom(holder, corpus_.chunks[ordinal], first_token, writer, written);
      },
      written);
}

absl::StatusOr<ExtraKeys> Exporter::KeysOf(const ExportFile& file) {
  std::vector<ExtraKeys> of_chunks;
  std::set<ExtraKey> keys;  // one that shapes tokens of several chunks is a key of each
  uint64_t first_token = 0;
  for (const uint32_t ordinal : file.ordinals) {
    const ChunkPlacement& chunk = corpus_.chunks[ordinal];
    ExtraKeys& of_chunk = of_chunks.emplace_back();
    const auto query = [&](const Member& holder) -> absl::Status {
      CKV_ASSIGN_OR_RETURN(ChunkInfo info, InfoFrom(CallsOf(holder), chunk));
      of_chunk = std::move(info.extra_keys);
      return absl::OkStatus();
    };
    CKV_RETURN_IF_ERROR(TryHolders(ordinal, query, absl::OkStatus()));
    for (ExtraKey key : of_chunk) {
      if (key.token_count != 0) key.begin += static_cast<int64_t>(first_token);
      keys.insert(std::move(key));
    }
    first_token += chunk.token_count;
  }
  auto sorted = SortExtraKeys(ExtraKeys(keys.begin(), keys.end()), file.token_count);
  bool fits = sorted.ok();
  first_token = 0;
  for (size_t i = 0; fits && i < of_chunks.size(); ++i) {
    const uint64_t end = first_token + corpus_.chunks[file.ordinals[i]].token_count;
    fits = ExtraKeysOf(*sorted, first_token, end) == of_chunks[i];
    first_token = end;
  }
  if (fits) return sorted;
  // A load of the file would give chunks other ids: one has a key that its neighbour should have,
  // too.
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s: its chunks have extra keys that one file cannot store\n  write fewer chunks to a file, "
      "with --chunks",
      file.path));
}

absl::Status Exporter::TryHolders(uint32_t ordinal,
                                  absl::FunctionRef<absl::Status(const Member&)> from,
                                  const absl::Status& fatal) {
  const ChunkPlacement& chunk = corpus_.chunks[ordinal];
  // The first error that is not NotFound, else the first NotFound.
  absl::Status error;
  bool all_without = true;
  for (const HolderId& id : CandidatesOf(chunk)) {
    const auto holder = holders_.find(id.name);
    all_without &= holder != holders_.end();
    if (holder == holders_.end()) continue;
    absl::Status status = from(holder->second);
    CKV_RETURN_IF_ERROR(fatal);
    if (status.ok()) return status;
    Warn(ordinal, id, status);
    // A damaged copy is lost, too. A holder that fails in another way may have the chunk.
    all_without &= absl::IsNotFound(status) || absl::IsDataLoss(status);
    if (error.ok() || (absl::IsNotFound(error) && !absl::IsNotFound(status))) error = status;
  }
  const std::string what = absl::StrFormat("chunk %d of corpus %s", ordinal, corpus_.name);
  if (!error.ok() && !absl::IsNotFound(error)) return Annotate(error, what);
  if (all_without) {
    return absl::DataLossError(what +
                               ": none of its holders has it any more\n  if it was not moved just "
                               "now, load the corpus again");
  }
  return absl::UnavailableError(
      what +
      ": none of its holders that are alive has it\n  ckvctl status shows who is, ckvctl "
      "corpus show NAME who has the chunks");
}

std::vector<HolderId> Exporter::CandidatesOf(const ChunkPlacement& chunk) const {
  std::vector<HolderId> candidates = chunk.holders();
  candidates.insert(candidates.end(), chunk.leased().begin(), chunk.leased().end());
  std::stable_partition(candidates.begin(), candidates.end(),
                        [this](const HolderId& id) { return !silent_.contains(id.name); });
  return candidates;
}

// Another holder compensates for a failure, but the operator should see it. A holder that does not
// answer at all is reported once.
void Exporter::Warn(uint32_t ordinal, const HolderId& holder, const absl::Status& status) {
  const std::string message(status.message());
  if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) {
    ctl_.Note(absl::StrFormat("ckvctl: warning: chunk %d: %s", ordinal, message));
  } else if (silent_.insert(holder.name).second) {
    ctl_.Note("ckvctl: warning: " + message);
  }
}

HolderCalls Exporter::CallsOf(const Member& holder) {
  auto& stub = stubs_[holder.id.name];
  if (stub == nullptr) stub = ConnectHolder(holder);
  return {*stub, holder, corpus_.geometry, corpus_.tenant, *ctl_.clock};
}

absl::StatusOr<ChunkInfo> Exporter::InfoFrom(const HolderCalls& calls,
                                             const ChunkPlacement& chunk) const {
  CKV_ASSIGN_OR_RETURN(ChunkInfo info, ReadChunkInfo(calls, chunk.id));
  const std::string& name = calls.holder.id.name;
  CKV_RETURN_IF_ERROR(
      Annotate(ValidateChunkInfo(info, corpus_.geometry), absl::StrFormat("holder %s", name)));
  if (info.token_count() == chunk.token_count && info.position == chunk.position) return info;
  return absl::InternalError(
      absl::StrFormat("holder %s: %d tokens from %d on, and the corpus has %d from %d on", name,
                      info.token_count(), info.position, chunk.token_count, chunk.position));
}

absl::Status Exporter::WriteFrom(const Member& holder, const ChunkPlacement& chunk,
                                 uint64_t first_token, SafetensorsWriter& writer,
                                 absl::Status& written) {
  const HolderCalls calls = CallsOf(holder);
  CKV_ASSIGN_OR_RETURN(const ChunkInfo info, InfoFrom(calls, chunk));
  const Geometry& geometry = corpus_.geometry;
  CKV_RETURN_IF_ERROR(ReadChunkRows(
      calls, info, [&](uint32_t tensor, uint64_t offset, std::span<const std::byte> rows) {
        const uint64_t row_bytes = geometry.tensor_row_bytes(tensor);
        written = writer.Write(tensor, first_token * row_bytes + offset, rows);
        progress_.Advance(rows.size());
        return written;
      }));
  written = writer.Write(geometry.tensor_count(), first_token * sizeof(int32_t),
                         std::as_bytes(std::span(info.token_ids)));
  return written;
}

void Report(const Ctl& ctl, const std::string& out, const Corpus& corpus,
            const std::vector<ExportFile>& files, Duration elapsed) {
  Table table({{"FILE"}, {"POSITION", true}, {"CHUNKS", true}, {"TOKENS", true}, {"ROWS", true}});
  Json json = {{"corpus", corpus.name}, {"version", corpus.version}, {"files", Json::array()}};
  uint64_t total_bytes = 0;
  for (const ExportFile& file : files) {
    const uint64_t bytes = file.token_count * corpus.geometry.token_bytes();
    const uint64_t position = corpus.chunks[file.ordinals.front()].position;
    total_bytes += bytes;
    table.AddRow({file.path, std::to_string(position), std::to_string(file.ordinals.size()),
                  std::to_string(file.token_count), FormatBytes(bytes)});
    json["files"].push_back({{"path", file.path},
                             {"base_position", position},
                             {"chunk_count", file.ordinals.size()},
                             {"token_count", file.token_count},
                             {"bytes", bytes}});
  }
  json["bytes"] = total_bytes;
  json["seconds"] = static_cast<double>(elapsed.count()) / 1e9;
  PrintBeside(
      ctl, out,
      RenderFields({{"corpus", absl::StrFormat("%s version %d", corpus.name, corpus.version)},
                    {"rows", FormatBytes(total_bytes)},
                    {"took", FormatDuration(elapsed)}}) +
          "\n" + table.Render(),
      json);
}

absl::Status RunExport(const Ctl& ctl, const ExportOptions& options) {
  const Instant start = ctl.clock->Now();
  CKV_RETURN_IF_ERROR(CheckOutput(options.out));
  Fleet fleet(ctl.fleet, ctl.clock);
  CKV_ASSIGN_OR_RETURN(const Corpus corpus, fleet.GetCorpus(options.corpus));
  CKV_ASSIGN_OR_RETURN(
      const std::vector<uint32_t> ordinals,
      ParseChunkRanges(options.chunks, static_cast<uint32_t>(corpus.chunks.size())));
  const std::vector<ExportFile> files = SplitIntoFiles(corpus, ordinals, options.out);
  if (files.size() > 1 && OutputFile::IsStream(options.out)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s is no file, and these chunks make %d files\n  name a file with --out, or chunks that "
        "follow each other with --chunks",
        options.out, files.size()));
  }
  CKV_ASSIGN_OR_RETURN(const std::vector<Member> members, fleet.Members());
  uint64_t total_bytes = 0;
  for (const ExportFile& file : files) {
    total_bytes += file.token_count * corpus.geometry.token_bytes();
  }
  {
    const auto progress = ctl.StartProgress("export", "B", total_bytes);
    Exporter exporter(ctl, corpus, members, progress.get());
    for (const ExportFile& file : files) CKV_RETURN_IF_ERROR(exporter.Write(file));
  }
  Report(ctl, options.out, corpus, files, ctl.clock->Now() - start);
  return absl::OkStatus();
}

}  // namespace

void AddCorpusExportCommand(CLI::App& corpus, Ctl& ctl) {
  const auto options = std::make_shared<ExportOptions>();
  CLI::App* verb = AddVerb(
      corpus, "export", "Write a corpus back into files of rows",
      "  ckvctl corpus export docs --out docs.safetensors\n"
      "  ckvctl corpus export docs --chunks 0-2 --out head.safetensors\n\n"
      "The files are what corpus load takes, token ids, extra keys and all. Rows are exported\n"
      "byte for byte. A whole file is identical to the loaded one if its tensors are in the order "
      "layers.0.ckv, ...,\n"
      "layers.0.index_k, ..., token_ids, without extra keys or with one line of JSON as an export "
      "writes it, and its\n"
      "header is written as an export writes it. Cuts are not in a file: load it with the options\n"
      "of the first time to reuse its chunks. Chunks that do not follow each other (standalone\n"
      "ones) go to a file a chain: docs-00001-of-00003.safetensors, and so on.\n\n"
      "Rows are read from their holders, hot or cold, and each layer is checked. If a\n"
      "holder fails, the next one with the chunk is read. A file gets its name when it is\n"
      "whole. Exit code 9: no holder has a chunk any more. Exit code 4: one that may have it is\n"
      "not there.");
  verb->add_option("NAME", options->corpus, "The corpus")->required();
  verb->add_option("--out", options->out, "safetensors file to write")
      ->required()
      ->type_name("FILE");
  verb->add_option("--chunks", options->chunks, kChunksHelp)->check(NotEmpty())->type_name("LIST");
  verb->callback(
      [&ctl, options] { ctl.run = [&ctl, options] { return RunExport(ctl, *options); }; });
}

}  // namespace ckv::ctl
