// ckvctl's connections to a fleet: one requester, one directory, any holder.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckv/v1/directory.grpc.pb.h"
#include "ckv/v1/holder.grpc.pb.h"
#include "ckv/v1/requester.grpc.pb.h"
#include "client/grpc/default_addresses.h"
#include "client/publish/holder_calls.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv::ctl {

struct FleetOptions {
  std::string requester;  // if empty, kDefaultRequesterAddress
  // The option that named `requester`, where it is not --requester: for errors.
  std::string requester_option;
  std::string directory;  // if empty, what the requester says, else kDefaultDirectoryAddress
  std::string tenant;
  Duration timeout = std::chrono::seconds(10);  // limit of each control call
  // How long the requester and the directory may take to serve, counted from the fleet's making. If
  // 0, nobody waits for them.
  Duration wait{0};
};

// One thread at a time, but for holder stubs, which are gRPC's and thread-safe, and for GetCorpus
// once directory() has returned. Errors carry who was asked, and for Unavailable what to do.
class Fleet {
 public:
  // Touches no network; what waits is the first call to each. `clock` must outlive it.
  Fleet(FleetOptions options, Clock* clock);

  const FleetOptions& options() const { return options_; }
  Clock& clock() const { return *clock_; }

  v1::RequesterService::StubInterface& requester();
  const std::string& requester_address() const { return requester_address_; }
  // Asks the requester for the directory's address once, if none was given.
  //   Unavailable         a requester was named and does not answer.
  absl::StatusOr<v1::DirectoryService::StubInterface*> directory();
  const std::string& directory_address() const { return directory_address_; }

  absl::StatusOr<v1::DescribeReply> Describe();
  // `ended`, unless null, gets the members whose lease ended lately: for people, who see who is
  // there now. `engines`, unless null, gets the engines that the directory lists; it needs `ended`.
  //   Unavailable         without `ended` also a directory whose holders are just coming back.
  absl::StatusOr<std::vector<Member>> Members(std::vector<v1::EndedLease>* ended = nullptr,
                                              std::vector<v1::EngineFacts>* engines = nullptr);
  // The live holders in the order of their names.
  //   FailedPrecondition  none.
  absl::StatusOr<std::vector<Member>> Holders();
  // Thread-safe once directory() has returned.
  //   NotFound            no such corpus; names the nearest, and says how to list them.
  absl::StatusOr<Corpus> GetCorpus(const std::string& name);
  absl::StatusOr<v1::ListCorporaReply> ListCorpora();
  // Tells where the directory keeps its state and what it found there.
  //   Unimplemented       the directory is of an earlier build.
  absl::StatusOr<v1::DescribeDirectoryReply> DescribeDirectory();
  // Places of a chunk; empty where no corpus has it.
  absl::StatusOr<v1::LocateChunkReply> Locate(const ChunkId& id);
  // Returns the key by which the ids of the tenant's chunks are made. The zero key says that they
  // are plain: those of the shared tenant, of a directory without a folder, or of an earlier build.
  // With `make`, a tenant without a key gets one.
  absl::StatusOr<TenantKey> KeyOfTenant(bool make);
  // Returns for each of `ids`, at most kIdsPerCallMax, how many corpora of any tenant place it on
  // the holder, or are told of it there.
  absl::StatusOr<std::vector<uint32_t>> CountReferences(std::span<const std::string> ids,
                                                        const HolderId& holder);

  // A call's context with a deadline: of options().timeout, or of `timeout`.
  void Prepare(grpc::ClientContext& context) const;
  void Prepare(grpc::ClientContext& context, Duration timeout) const;
  // Prepares a call whose request gives the requester a limit of its own. The requester's error,
  // which says what was late, then arrives before the call's deadline.
  void PrepareBeyond(grpc::ClientContext& context, uint32_t request_timeout_ms) const;
  // Returns the limit for a request that shares `deadline` with others: at least 1 ms, since 0 asks
  // the requester for its default.
  uint32_t RemainingMs(Instant deadline) const;
  // Says what the requester answered, or that it did not. Its Unavailable may be about a holder, so
  // then it is asked whether it is there, and the advice follows from that.
  absl::Status RequesterError(const grpc::Status& status, std::string_view call) const;
  absl::Status DirectoryError(const grpc::Status& status, std::string_view call) const;

 private:
  bool RequesterAnswers() const;
  // The name of a corpus that `name` may be meant for. Empty if there is none.
  std::string NearestCorpus(const std::string& name);
  // The channel to `address`, once it serves `service` or options().wait is over.
  std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address, const char* service,
                                           bool wait);

  FleetOptions options_;
  Clock* const clock_;
  const Instant wait_until_;
  std::string requester_address_;
  std::string directory_address_;
  std::unique_ptr<v1::RequesterService::StubInterface> requester_;
  std::unique_ptr<v1::DirectoryService::StubInterface> directory_;
};

}  // namespace ckv::ctl
