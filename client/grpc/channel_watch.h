// Tells when the connection to a process comes up, so that nobody waits for a pause between two
// tries to be over.

#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

namespace ckv {

// Keeps a connection up, shared with the other channels of this process to the address. Owns one
// thread.
class ChannelWatch {
 public:
  // Calls `on_up` on its thread each time that the connection has come up.
  ChannelWatch(const std::string& address, std::function<void()> on_up);
  // Ends within kSliceMs.
  ~ChannelWatch();
  ChannelWatch(const ChannelWatch&) = delete;
  ChannelWatch& operator=(const ChannelWatch&) = delete;

 private:
  static constexpr int kSliceMs = 100;
  void Run();

  const std::function<void()> on_up_;
  const std::shared_ptr<grpc::Channel> channel_;
  std::atomic<bool> stop_{false};  // a flag alone: it orders nothing
  std::thread thread_;
};

}  // namespace ckv
