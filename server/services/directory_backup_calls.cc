// The calls of DirectoryService that move a directory's durable state, on gRPC's threads.

#include <optional>
#include <utility>
#include <vector>

#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"
#include "proto/base/status.h"
#include "server/services/directory_service.h"

namespace ckv {

grpc::Status DirectoryServiceImpl::Export(grpc::ServerContext* context,
                                          const v1::ExportRequest* /*request*/,
                                          grpc::ServerWriter<v1::DirectoryRecords>* writer) {
  const auto stream = gate_.Enter(EndCall(context));
  if (!stream.ok()) return ToGrpc(stream.status());
  bool is_sent = true;
  state_.backup().Export([&](std::string_view records) {
    v1::DirectoryRecords message;
    message.set_records(records.data(), records.size());
    return is_sent = writer->Write(message);
  });
  return is_sent ? grpc::Status::OK : grpc::Status::CANCELLED;
}

grpc::Status DirectoryServiceImpl::Import(grpc::ServerContext* context,
                                          grpc::ServerReader<v1::DirectoryRecords>* reader,
                                          v1::ImportReply* reply) {
  const auto stream = gate_.Enter(EndCall(context));
  if (!stream.ok()) return ToGrpc(stream.status());
  DirectoryBackup::Counts counts;
  std::optional<uint32_t> expected, ended;
  uint32_t corpus_count = 0;
  v1::DirectoryRecords message;
  while (reader->Read(&message)) {
    std::vector<DirectoryChange> changes;
    const absl::Status read = ReadRecords(message.records(), [&](DirectoryChange change) {
      if (change.kind == ChangeKind::kSnapshotBegin) expected = change.corpus_count;
      if (change.kind == ChangeKind::kSnapshotEnd) ended = change.corpus_count;
      if (change.kind == ChangeKind::kPublish) ++corpus_count;
      changes.push_back(std::move(change));
      return absl::OkStatus();
    });
    if (!read.ok()) return ToGrpc(absl::InvalidArgumentError(read.message()));
    if (!expected) return ToGrpc(absl::InvalidArgumentError("the first records are missing"));
    const absl::Status imported =
        state_.backup().Import(changes, DeadlineOf(*context, clock_, kControlTimeoutMax), counts);
    if (!imported.ok()) return ToGrpc(imported);
  }
  if (!ended || *ended != corpus_count || expected != ended)
    return ToGrpc(absl::InvalidArgumentError("the last records are missing"));
  reply->set_corpus_count(counts.corpus_count);
  reply->set_key_count(counts.key_count);
  reply->set_tombstone_count(counts.tombstone_count);
  reply->set_same_count(counts.same_count);
  return grpc::Status::OK;
}

}  // namespace ckv
