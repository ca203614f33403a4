// A descriptor that wakes the dispatcher's thread out of a sleep.

#pragma once

namespace ckv {

// Any thread may call Ring. The rest belongs to the thread that sleeps.
class Doorbell {
 public:
  Doorbell() = default;
  ~Doorbell();
  Doorbell(const Doorbell&) = delete;
  Doorbell& operator=(const Doorbell&) = delete;

  // Call it once, first. Returns false if no descriptor is left; errno has the reason.
  bool Open();
  // Readable from a Ring until Clear. -1 before Open.
  int fd() const { return fd_; }

  void Ring() const;
  // Takes all rings so far. Does not wait.
  void Clear() const;

 private:
  int fd_ = -1;
};

}  // namespace ckv
