// A terminal that a text takes whole, until it is given back as it was.

#pragma once

#include <termios.h>

#include <atomic>
#include <string_view>

#include "client/ctl/top/top_text.h"
#include "proto/base/clock.h"

namespace ckv::ctl {

// One thread, but for Restore. Keys are read as they are pressed and not shown.
class TopScreen {
 public:
  // The wish of a person: none while the wait took, an end, or a new look.
  enum class Key { kNone, kQuit, kLook };

  // Both descriptors are of a terminal and are borrowed. Shows an empty screen instead of what is
  // there. Ctrl-C stays a signal; Ctrl-Z and Ctrl-\ do nothing, since they would leave it like
  // this.
  TopScreen(int in_fd, int out_fd);
  ~TopScreen() { Restore(); }
  TopScreen(const TopScreen&) = delete;
  TopScreen& operator=(const TopScreen&) = delete;

  // The size that it has now, or 80 x 24 if it does not say.
  TopRoom room() const;
  // Shows the text in place of the one before.
  void Draw(std::string_view text) const;
  // Returns on `q` and Ctrl-D (kQuit), on a space or Enter (kLook), or after `limit`. Waits in real
  // time. A terminal that is gone is an end.
  Key Wait(Duration limit) const;
  // Gives the terminal back. From any thread, at any time; the second call does nothing.
  void Restore();

 private:
  void Write(std::string_view bytes) const;

  const int in_fd_, out_fd_;
  termios before_ = {};
  std::atomic<bool> restored_{false};
};

}  // namespace ckv::ctl
