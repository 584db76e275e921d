// Threads of CUDA as fibers on one thread of the CPU, where to wait for others costs a switch of some
// nanoseconds. Each runs until it waits. Which one is next is left to random numbers, the same in each run.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>

struct Index {
    unsigned x, y, z;
};
struct Meeting;
struct Warp;

struct Thread {
    // What it knows of itself.
    Index index, block;
    unsigned number;         // among those of all blocks that run at once
    unsigned rank;           // of its block in the cluster
    unsigned char* dynamic;  // shared memory of its block
    Meeting* block_barrier;
    Warp* warp;

    // How it runs.
    ucontext_t beginning;
    bool begun, ended;
    void* place[5];     // where it goes on
    const void* stack;  // null for the main one, until another runs
    size_t stack_bytes;
    void* known;   // what a sanitizer has of it
    Thread* next;  // of those that wait for the same
};
inline Thread* running;

constexpr unsigned MOST_THREADS = 4096, MOST_BLOCKS_AT_ONCE = 16;

// A variable of which each thread has its own.
template <class Type>
struct Own {
    Type of[MOST_THREADS];
    Type& operator*() { return of[running->number]; }
    Type* operator->() { return &of[running->number]; }
};

// While there is one, ThreadSanitizer sees none of the thread's accesses: they are the emulation's.
struct Quiet {
    Quiet();
    ~Quiet();
};

// Threads that wait until something holds. Who makes it hold, tells them.
struct Waiting {
    Thread* first = nullptr;

    template <class Condition>
    void until(Condition holds) {
        while (!holds()) wait();
    }
    void wait();
    void tell();
};

void give_way();  // another thread may run

// Where threads wait for each other, again and again.
struct Meeting {
    unsigned come = 0, phase = 0;
    Waiting others;
    char phases[2];  // whose addresses ThreadSanitizer knows

    unsigned arrive(unsigned threads);  // returns the phase, which ends with the last of so many
    void wait(unsigned for_phase);
    void sync(unsigned threads) { wait(arrive(threads)); }
};

// The blocks of a cluster.
struct Block {
    unsigned char* shared;  // where its dynamic shared memory begins
    unsigned running;       // threads that have not ended
};
inline Block blocks_at_once[MOST_BLOCKS_AT_ONCE];
inline unsigned blocks_of_cluster;

// Calls `kernel` by each thread of each block of gridDim, of one cluster after the other. A block has the
// threads of blockDim and `bytes` of dynamic shared memory.
void run_blocks(unsigned cluster, size_t bytes, const std::function<void()>& kernel);
