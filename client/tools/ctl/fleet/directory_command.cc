// ckvctl directory export|import: the directory's durable state in a file.

#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "client/grpc/grpc_status.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/fleet/backup_file.h"
#include "client/tools/ctl/output.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

// A state of 8 million chunks takes some 30 s.
constexpr Duration kMoveTimeoutMin = std::chrono::minutes(10);

Instant MoveDeadline(const Ctl& ctl) {
  return ctl.clock->Now() + std::max(ctl.fleet.timeout, kMoveTimeoutMin);
}

absl::Status RunExport(const Ctl& ctl, const std::string& path) {
  Fleet fleet(ctl.fleet, ctl.clock);
  CKV_RETURN_IF_ERROR(OutputFile::Check(path));
  CKV_ASSIGN_OR_RETURN(DirectoryCaller* const directory, fleet.directory());
  CKV_ASSIGN_OR_RETURN(BackupWriter file, BackupWriter::Create(path));
  const DirectoryCaller::Place place = directory->BeginStream();
  grpc::ClientContext context;
  SetDeadline(context, *ctl.clock, MoveDeadline(ctl), kMoveTimeoutMin);
  const auto reader = place.stub->Export(&context, v1::ExportRequest());
  const auto progress = ctl.StartProgress("export", "B", 0);
  v1::DirectoryRecords message;
  absl::Status written;
  while (written.ok() && reader->Read(&message)) {
    written = file.Add(message.records());
    progress->Advance(message.records().size());
  }
  if (!written.ok()) context.TryCancel();
  const absl::Status ended = directory->EndStream(place, "Export", reader->Finish(), context);
  CKV_RETURN_IF_ERROR(written);
  CKV_RETURN_IF_ERROR(ended);
  const uint64_t bytes = file.bytes();
  CKV_RETURN_IF_ERROR(std::move(file).Finish());
  ctl.Print(
      absl::StrFormat("%s has the directory at %s: %s\n", path, place.address, FormatBytes(bytes)),
      {{"path", path}, {"directory", place.address}, {"bytes", bytes}});
  return absl::OkStatus();
}

absl::Status RunImport(const Ctl& ctl, const std::string& path) {
  Fleet fleet(ctl.fleet, ctl.clock);
  CKV_ASSIGN_OR_RETURN(DirectoryCaller* const directory, fleet.directory());
  // The leader is known once one of them has answered.
  v1::DescribeDirectoryReply described;
  CKV_RETURN_IF_ERROR(fleet.CallDirectory(&DirectoryCaller::Stub::Describe, "Describe",
                                          v1::DescribeDirectoryRequest(), &described));
  const DirectoryCaller::Place place = directory->BeginStream();
  grpc::ClientContext context;
  SetDeadline(context, *ctl.clock, MoveDeadline(ctl), kMoveTimeoutMin);
  v1::ImportReply reply;
  const auto writer = place.stub->Import(&context, &reply);
  bool is_open = true;
  absl::Status read = ReadBackup(path, [&](std::string message) {
    v1::DirectoryRecords records;
    records.set_records(std::move(message));
    is_open = writer->Write(records);
    return is_open ? absl::OkStatus() : absl::CancelledError("the directory ended the import");
  });
  if (!read.ok() && is_open) context.TryCancel();
  if (read.ok()) writer->WritesDone();
  const absl::Status ended = directory->EndStream(place, "Import", writer->Finish(), context);
  if (!read.ok() && is_open) return read;
  CKV_RETURN_IF_ERROR(ended);
  ctl.Print(
      absl::StrFormat("%s imported into the directory at %s: %d corpora, %d keys, %d tombstones; "
                      "%d were there\n",
                      path, place.address, reply.corpus_count(), reply.key_count(),
                      reply.tombstone_count(), reply.same_count()),
      {{"path", path},
       {"directory", place.address},
       {"corpus_count", reply.corpus_count()},
       {"key_count", reply.key_count()},
       {"tombstone_count", reply.tombstone_count()},
       {"same_count", reply.same_count()}});
  return absl::OkStatus();
}

}  // namespace

void AddDirectoryCommands(CLI::App& app, Ctl& ctl) {
  CLI::App* noun = app.add_subcommand("directory", "Back up the directory's state, or move it");
  noun->fallthrough();
  noun->require_subcommand(1);
  const auto path = std::make_shared<std::string>();
  CLI::App* out = AddVerb(
      *noun, "export", "Write corpora, tombstones and keys of tenants to a file",
      "  ckvctl directory export fleet.ckvdir\n\n"
      "The file is the state as of one moment, of all tenants. It has their keys, so only its\n"
      "owner can read it. It appears once it is whole. Chunks stay on their holders.");
  out->add_option("file", *path, "The file")->required()->type_name("FILE");
  out->callback([&ctl, path] { ctl.run = [&ctl, path] { return RunExport(ctl, *path); }; });
  CLI::App* in = AddVerb(
      *noun, "import", "Read a file of export into a directory",
      "  ckvctl directory import fleet.ckvdir\n\n"
      "Nothing is replaced: if another version of a corpus is there, or another key of a tenant,\n"
      "the import ends with its name, and can be run again once that is dropped. Holders report\n"
      "what was changed after the export.");
  in->add_option("file", *path, "A file of ckvctl directory export")->required()->type_name("FILE");
  in->callback([&ctl, path] { ctl.run = [&ctl, path] { return RunImport(ctl, *path); }; });
}

}  // namespace ckv::ctl
