#include "client/ctl/chunk_io.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "client/grpc_status.h"
#include "proto/convert.h"
#include "proto/status.h"

namespace ckv::ctl {
namespace {

constexpr size_t kPieceBytesMax = size_t{1} << 20;  // PutChunkRequest.Rows
// A chunk of 2048 V3 tokens is 144 MB: 2.5 MB/s would still make it.
constexpr Duration kPutTimeout = std::chrono::minutes(1);

v1::PutChunkRequest HeaderOf(const Geometry& geometry, const ChunkInfo& info,
                             const std::string& tenant) {
  v1::PutChunkRequest request;
  v1::PutChunkRequest::Header& header = *request.mutable_header();
  *header.mutable_geometry() = ToProto(geometry);
  header.set_id(std::string(info.id.AsBytes()));
  header.set_parent(std::string(info.parent.AsBytes()));
  header.set_position(info.position);
  header.set_tenant(tenant);
  header.set_token_ids(Int32sToBytes(info.token_ids));
  for (const uint64_t checksum : info.layer_checksums) header.add_layer_checksums(checksum);
  return request;
}

// Sends the rows until the holder stops listening, which is how it says that it has them.
void WriteRows(grpc::ClientWriterInterface<v1::PutChunkRequest>& writer, const Geometry& geometry,
               const SourceChunk& chunk, const std::function<void(uint64_t)>& on_bytes,
               uint64_t& bytes_sent) {
  v1::PutChunkRequest request;
  for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
    const std::span<const std::byte> rows = chunk.rows(layer);
    for (size_t offset = 0; offset < rows.size(); offset += kPieceBytesMax) {
      const auto piece = rows.subspan(offset, std::min(kPieceBytesMax, rows.size() - offset));
      v1::PutChunkRequest::Rows& message = *request.mutable_rows();
      message.set_layer(layer);
      message.set_offset_bytes(offset);
      message.set_rows(piece.data(), piece.size());
      if (!writer.Write(request)) return;
      bytes_sent += piece.size();
      on_bytes(piece.size());
    }
  }
}

absl::Status PutOne(v1::HolderService::StubInterface& stub, const Member& holder,
                    const Geometry& geometry, const SourceChunk& chunk, const std::string& tenant,
                    Clock& clock, const std::function<void(uint64_t)>& on_bytes,
                    HolderTally& tally) {
  grpc::ClientContext context;
  SetDeadline(context, clock, clock.Now() + kPutTimeout, kPutTimeout);
  v1::PutChunkReply reply;
  const auto writer = stub.PutChunk(&context, &reply);
  uint64_t sent = 0;
  if (writer->Write(HeaderOf(geometry, chunk.info, tenant))) {
    WriteRows(*writer, geometry, chunk, on_bytes, sent);
  }
  writer->WritesDone();
  absl::Status status = HolderError(writer->Finish(), holder, "PutChunk");
  tally.bytes_sent += sent;
  if (status.ok()) {
    ++tally.chunks_new;
    return status;
  }
  if (status.code() != absl::StatusCode::kAlreadyExists) {
    return Annotate(status, absl::StrFormat("chunk %s", chunk.info.id.ShortHex()));
  }
  ++tally.chunks_reused;
  tally.bytes_sent_reused += sent;
  on_bytes(chunk.info.token_count() * geometry.token_bytes() - sent);
  return absl::OkStatus();
}

// What the threads of one PutChunks share.
class PutRun {
 public:
  void Fail(const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    status_.Update(status);
    stopped_.store(true, std::memory_order_relaxed);
  }
  // A hint to stop early; the status itself is read after the join.
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }
  absl::Status status() {
    absl::MutexLock lock(&mu_);
    return status_;
  }

 private:
  absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> stopped_{false};
};

}  // namespace

absl::StatusOr<std::map<std::string, HolderTally>> PutChunks(
    const LoadSource& source, const std::vector<std::vector<HolderId>>& placement,
    std::span<const Member> holders, const std::string& tenant, Clock& clock,
    const std::function<void(uint64_t)>& on_bytes) {
  std::map<std::string, HolderTally> tallies;
  for (const Member& holder : holders) tallies[holder.id.name];
  PutRun run;
  std::vector<std::thread> threads;
  for (const Member& holder : holders) {
    threads.emplace_back([&, tally = &tallies[holder.id.name]] {
      const auto stub = ConnectHolder(holder);
      for (size_t i = 0; i < source.chunks.size() && !run.stopped(); ++i) {
        if (std::find(placement[i].begin(), placement[i].end(), holder.id) == placement[i].end()) {
          continue;
        }
        const absl::Status status = PutOne(*stub, holder, source.geometry, source.chunks[i], tenant,
                                           clock, on_bytes, *tally);
        if (!status.ok()) run.Fail(status);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (const absl::Status status = run.status(); !status.ok()) {
    uint32_t put = 0, wanted = 0;
    for (const auto& [name, tally] : tallies) put += tally.chunks_new + tally.chunks_reused;
    for (const auto& chunk_holders : placement) wanted += chunk_holders.size();
    return absl::Status(
        status.code(),
        absl::StrFormat(
            "%s\n  %d of %d chunk copies are put and nothing is published; run the same "
            "command again: what is put is reused",
            std::string(status.message()), put, wanted));
  }
  return tallies;
}

absl::StatusOr<std::map<std::string, HolderTally>> DropOrphans(
    Fleet& fleet, const google::protobuf::RepeatedPtrField<v1::ChunkPlacement>& orphans,
    std::vector<std::string>& warnings) {
  std::map<std::string, HolderTally> tallies;
  CKV_ASSIGN_OR_RETURN(const std::vector<Member> members, fleet.Members());
  std::map<std::string, std::vector<ChunkId>> drops;  // by holder
  for (const v1::ChunkPlacement& message : orphans) {
    CKV_ASSIGN_OR_RETURN(const ChunkPlacement orphan, FromProto(message));
    for (const HolderId& holder : orphan.holders) drops[holder.name].push_back(orphan.id);
    for (const HolderId& member : orphan.leased) drops[member.name].push_back(orphan.id);
  }
  for (const auto& [holder, ids] : drops) {
    const std::string& name = holder;  // clang 14 captures no structured binding
    const auto member = std::find_if(members.begin(), members.end(), [&](const Member& m) {
      return m.id.name == name && m.role == MemberRole::kHolder;
    });
    if (member == members.end()) {
      warnings.push_back(
          absl::StrFormat("holder %s is gone; %d chunks on it were not dropped", name, ids.size()));
      continue;
    }
    const auto stub = ConnectHolder(*member);
    for (const ChunkId& id : ids) {
      grpc::ClientContext context;
      fleet.Prepare(context);
      v1::DropChunkRequest request;
      request.set_id(std::string(id.AsBytes()));
      v1::DropChunkReply reply;
      const absl::Status status =
          HolderError(stub->DropChunk(&context, request, &reply), *member, "DropChunk");
      if (status.ok()) {
        ++tallies[name].chunks_dropped;
      } else if (status.code() != absl::StatusCode::kNotFound) {
        warnings.push_back(std::string(status.message()));
        break;
      }
    }
  }
  return tallies;
}

absl::StatusOr<v1::PublishCorpusReply> PublishCorpus(Fleet& fleet, const Corpus& corpus,
                                                     bool replace) {
  CKV_ASSIGN_OR_RETURN(v1::DirectoryService::StubInterface * directory, fleet.directory());
  grpc::ClientContext context;
  fleet.Prepare(context);
  v1::PublishCorpusRequest request;
  *request.mutable_corpus() = ToProto(corpus);
  request.set_replace(replace);
  v1::PublishCorpusReply reply;
  CKV_RETURN_IF_ERROR(
      fleet.DirectoryError(directory->PublishCorpus(&context, request, &reply), "PublishCorpus"));
  return reply;
}

absl::StatusOr<std::map<std::string, HolderTally>> DropCorpus(Fleet& fleet, const std::string& name,
                                                              std::vector<std::string>& warnings) {
  CKV_ASSIGN_OR_RETURN(v1::DirectoryService::StubInterface * directory, fleet.directory());
  v1::DropCorpusReply reply;
  {
    grpc::ClientContext context;
    fleet.Prepare(context);
    v1::DropCorpusRequest request;
    request.set_name(name);
    request.set_tenant(fleet.options().tenant);
    CKV_RETURN_IF_ERROR(
        fleet.DirectoryError(directory->DropCorpus(&context, request, &reply), "DropCorpus"));
  }
  return DropOrphans(fleet, reply.orphans(), warnings);
}

}  // namespace ckv::ctl
