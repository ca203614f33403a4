// A directory on loopback that leads, follows or does not answer, as a test says.

#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "ckv/v1/directory.grpc.pb.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"
#include "gtest/gtest.h"
#include "tests/support/soon.h"

namespace ckv::test {

// It serves two calls: GetCorpus is a read, DropCorpus needs the leader. Thread-safe.
class FakeDirectory final : public v1::DirectoryService::Service {
 public:
  // A handler's own answer to its call number `call`, from 1, made without the lock. OK continues
  // as usual.
  using Hook = std::function<grpc::Status(const grpc::ServerContext& context, int call)>;

  FakeDirectory() { Start(); }
  ~FakeDirectory() override { Kill(); }

  // Sends kLeaderKey with this text from now on.
  void Lead() { Report(kLeadsItself); }
  void Follow(const std::string& leader) { Report(leader); }
  void Report(std::optional<std::string> leader) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    leader_ = std::move(leader);
  }
  void SetHook(Hook hook) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    hook_ = std::move(hook);
  }
  // The corpus that GetCorpus returns; if empty, it returns NotFound.
  void SetCorpus(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    corpus_ = name;
  }
  // Calls are received and not answered, until Answer.
  void BeSilent() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    silent_ = true;
  }
  void Answer() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    silent_ = false;
  }
  // Ends all calls and connections at once.
  void Kill() {
    Answer();
    if (server_) server_->Shutdown(gpr_time_0(GPR_CLOCK_REALTIME));
    server_.reset();
  }
  // Starts again, at the same address.
  void Start() {
    KeepGrpcUp();
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port_), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  int call_count() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return call_count_;
  }
  // Waits until it has received `count` calls.
  bool AwaitCalls(int count) const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return call_count_ >= count; };
    return Clock::Real()->Await(mu_, absl::Condition(&reached), Soon());
  }

  grpc::Status GetCorpus(grpc::ServerContext* context, const v1::GetCorpusRequest* request,
                         v1::GetCorpusReply* reply) override ABSL_LOCKS_EXCLUDED(mu_) {
    if (const grpc::Status status = Begin(context); !status.ok()) return status;
    absl::MutexLock lock(&mu_);
    if (corpus_ != request->name()) return {grpc::StatusCode::NOT_FOUND, "no such corpus"};
    reply->mutable_corpus()->set_name(corpus_);
    return grpc::Status::OK;
  }
  grpc::Status DropCorpus(grpc::ServerContext* context, const v1::DropCorpusRequest* request,
                          v1::DropCorpusReply* reply) override ABSL_LOCKS_EXCLUDED(mu_) {
    if (const grpc::Status status = Begin(context); !status.ok()) return status;
    absl::MutexLock lock(&mu_);
    if (leader_ && *leader_ != kLeadsItself)
      return {grpc::StatusCode::UNAVAILABLE, "this directory does not lead"};
    if (corpus_ != request->name()) return {grpc::StatusCode::NOT_FOUND, "no such corpus"};
    corpus_.clear();
    reply->mutable_corpus()->set_name(request->name());
    return grpc::Status::OK;
  }

 private:
  grpc::Status Begin(grpc::ServerContext* context) ABSL_LOCKS_EXCLUDED(mu_) {
    Hook hook;
    int call = 0;
    {
      absl::MutexLock lock(&mu_);
      call = ++call_count_;
      hook = hook_;
      const auto may_answer = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !silent_; };
      Clock::Real()->Await(mu_, absl::Condition(&may_answer), Soon());
    }
    const grpc::Status status = hook ? hook(*context, call) : grpc::Status::OK;
    absl::MutexLock lock(&mu_);
    if (leader_) context->AddTrailingMetadata(kLeaderKey, *leader_);
    return status;
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  mutable absl::Mutex mu_;
  std::optional<std::string> leader_ ABSL_GUARDED_BY(mu_);
  Hook hook_ ABSL_GUARDED_BY(mu_);
  std::string corpus_ ABSL_GUARDED_BY(mu_) = "docs";
  bool silent_ ABSL_GUARDED_BY(mu_) = false;
  int call_count_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ckv::test
