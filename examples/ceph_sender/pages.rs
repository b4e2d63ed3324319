//! Payload as it is in a page cache: objects whose pages do not lie side by side.

use bytes::Bytes;

/// Memory cut into pages, and an order in which no page follows its neighbour.
pub(crate) struct Pages {
    memory: Bytes,
    page: usize,
    size: usize,
    /// A power of two, so that every odd stride visits every page.
    count: usize,
    stride: usize,
}

impl Pages {
    /// Memory for objects of `size` bytes: 16 MiB, or enough for two of them.
    pub(crate) fn scattered(size: usize, page: usize) -> Self {
        let count = (2 * size.div_ceil(page)).max((16 << 20) / page).max(2).next_power_of_two();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut memory = vec![0; count * page];
        for word in memory.chunks_mut(8) {
            // Marsaglia's xorshift: no two pages alike.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
        }
        Self { memory: memory.into(), page, size, count, stride: (count * 5 / 8) | 1 }
    }

    /// How many objects there are before the first one comes again.
    pub(crate) fn different(&self) -> u64 {
        self.count as u64
    }

    /// The pages of an object, the last one cut to its size. Each object begins at another page.
    pub(crate) fn object(&self, number: u64) -> Vec<Bytes> {
        let first = number as usize % self.count;
        let pages = (0..self.size.div_ceil(self.page)).map(|index| {
            let at = (first + index * self.stride) % self.count * self.page;
            let len = self.page.min(self.size - index * self.page);
            self.memory.slice(at..at + len)
        });
        pages.collect()
    }
}
