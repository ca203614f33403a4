// Reports when the connection to a process is established, so that no caller waits for the pause
// between two attempts to end.

#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

namespace ckv {

// Keeps a connection open, shared with the other channels of this process to the address. Owns one
// thread.
class ChannelWatch {
 public:
  // Calls `on_up` on its thread each time the connection is established.
  ChannelWatch(const std::string& address, std::function<void()> on_up);
  // Stops the thread, within kSliceMs if `on_up` is not running.
  ~ChannelWatch();
  ChannelWatch(const ChannelWatch&) = delete;
  ChannelWatch& operator=(const ChannelWatch&) = delete;

 private:
  static constexpr int kSliceMs = 100;
  void Run();

  const std::function<void()> on_up_;
  const std::shared_ptr<grpc::Channel> channel_;
  std::atomic<bool> stop_{false};  // only a flag; orders nothing
  std::thread thread_;
};

}  // namespace ckv
