// ckvctl's connections to a fleet: one requester and the directory.

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
#include "client/grpc/directory_caller.h"
#include "client/publish/holder_calls.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "proto/corpus.h"

namespace ckv::ctl {

struct FleetOptions {
  std::string requester;  // if empty, kDefaultRequesterAddress
  // The option that set `requester`, if it was not --requester. For error texts.
  std::string requester_option;
  // As for DirectoryCaller. If empty, as the requester reports, else kDefaultDirectoryAddress.
  std::string directory;
  std::string tenant;
  Duration timeout = std::chrono::seconds(10);  // limit of each control call
  // How long to wait until the requester and the directory serve, counted from the constructor. If
  // 0, does not wait.
  Duration wait{0};
};

// Used by one thread at a time, except for GetCorpus, which is thread-safe once directory() has
// returned. Holder stubs (ConnectHolder in client/publish/holder_calls.h) are thread-safe too.
// Errors name the peer and, for Unavailable, a remedy.
class Fleet {
 public:
  // Does not touch the network; the first call to each peer waits for it. `clock` must outlive the
  // fleet.
  Fleet(FleetOptions options, Clock* clock);

  const FleetOptions& options() const { return options_; }
  Clock& clock() const { return *clock_; }

  v1::RequesterService::StubInterface& requester();
  const std::string& requester_address() const { return requester_address_; }
  // If no address was given, queries the requester for it once.
  //   Unavailable         a requester was named and does not answer.
  //   InvalidArgument     the address is a malformed list.
  absl::StatusOr<DirectoryCaller*> directory();
  const std::string& directory_address() const { return directory_address_; }
  // Makes a call to the directory, with options().timeout. Thread-safe once directory() has
  // returned. Errors are those of directory() and of DirectoryError.
  template <class Request, class Reply>
  absl::Status CallDirectory(grpc::Status (DirectoryCaller::Stub::*method)(grpc::ClientContext*,
                                                                           const Request&, Reply*),
                             std::string_view name, const Request& request, Reply* reply) {
    CKV_ASSIGN_OR_RETURN(DirectoryCaller* const caller, directory());
    CallEnd end;
    const absl::Status status =
        caller->Call(method, name, request, reply, DirectoryDeadline(), &end);
    return DirectoryError(status, end, name);
  }
  // Returns the deadline of a call to the directory that begins now.
  Instant DirectoryDeadline() const { return clock_->Now() + options_.timeout; }

  absl::StatusOr<v1::DescribeReply> Describe();
  // Returns the members, sorted by id. If `ended` is set, it receives the members whose lease ended
  // recently. The directory then answers at once, with the members it has now: for display. If
  // `engines` is set, it receives the engines that the directory lists; this needs `ended`.
  //   Unavailable         also, without `ended`, a restarted directory whose holders have not all
  //                       registered again.
  absl::StatusOr<std::vector<Member>> Members(std::vector<v1::EndedLease>* ended = nullptr,
                                              std::vector<v1::EngineFacts>* engines = nullptr);
  // Returns the live holders, sorted by name.
  //   FailedPrecondition  there are none.
  absl::StatusOr<std::vector<Member>> Holders();
  // Thread-safe once directory() has returned.
  //   NotFound            no such corpus; the text suggests the nearest name, and how to list all.
  absl::StatusOr<Corpus> GetCorpus(const std::string& name);
  absl::StatusOr<v1::ListCorporaReply> ListCorpora();
  // Returns where the directory keeps its state and what it found there.
  absl::StatusOr<v1::DescribeDirectoryReply> DescribeDirectory();
  // Returns the places of a chunk; empty if no corpus has it.
  absl::StatusOr<v1::LocateChunkReply> Locate(const ChunkId& id);
  // Returns the key for the ids of the tenant's chunks. The zero key means that they are plain:
  // those of the shared tenant, or of a directory without a folder. With `make`, a tenant without a
  // key gets one.
  absl::StatusOr<TenantKey> KeyOfTenant(bool make);
  // Returns for each of `ids`, at most kIdsPerCallMax, how many corpora of any tenant place it on
  // the holder, published or leased. Corpora that holders report to a restarted directory count
  // too.
  absl::StatusOr<std::vector<uint32_t>> CountReferences(std::span<const std::string> ids,
                                                        const HolderId& holder);

  // Sets a call's deadline: options().timeout or `timeout` from now.
  void Prepare(grpc::ClientContext& context) const;
  void Prepare(grpc::ClientContext& context, Duration timeout) const;
  // Prepares a call whose request has its own time limit. The requester's error, which names what
  // was late, then arrives before the call's deadline.
  void PrepareBeyond(grpc::ClientContext& context, uint32_t request_timeout_ms) const;
  // Returns the time limit for a request that shares `deadline` with others: at least 1 ms, because
  // 0 means the requester's default.
  uint32_t RemainingMs(Instant deadline) const;
  // Converts a call's status, with the peer's name and advice. Unavailable from the requester may
  // be about a holder, so RequesterError then queries the requester and advises accordingly.
  absl::Status RequesterError(const grpc::Status& status, std::string_view call) const;
  // The same for a call made with DirectoryCaller, which returned `status`.
  absl::Status DirectoryError(const absl::Status& status, const CallEnd& end,
                              std::string_view call) const;

 private:
  bool RequesterAnswers() const;
  // Returns the name of the corpus that `name` may mean, or "" if there is none.
  std::string NearestCorpus(const std::string& name);
  // Waits until one of the directories serves, or until options().wait is over.
  void AwaitDirectory();

  FleetOptions options_;
  Clock* const clock_;
  const Instant wait_until_;
  std::string requester_address_;
  std::string directory_address_;
  std::unique_ptr<v1::RequesterService::StubInterface> requester_;
  std::unique_ptr<DirectoryCaller> directory_;
};

}  // namespace ckv::ctl
