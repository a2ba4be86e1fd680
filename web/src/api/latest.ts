/**
 * The newest question wins. A drag asks faster than a far server answers: aborting every question would freeze the picture, answering
 * every one would lag behind. So one question is under way, the newest waits, and what is older than `patience` is aborted.
 */
export class Latest<Q, A> {
  private underway: { readonly abort: AbortController; readonly since: number } | null = null;
  private waiting: { readonly question: Q } | null = null;

  constructor(
    private readonly asker: (question: Q, signal: AbortSignal) => Promise<A>,
    private readonly settled: (question: Q, answer: A | null, error: unknown) => void,
    private readonly patience = 300,
    private readonly now: () => number = () => performance.now(),
  ) {}

  ask(question: Q): void {
    this.waiting = { question };
    if (!this.underway) void this.next();
    else if (this.now() - this.underway.since > this.patience) this.underway.abort.abort();
  }

  stop(): void {
    this.waiting = null;
    this.underway?.abort.abort();
  }

  get busy(): boolean {
    return this.underway !== null;
  }

  private async next(): Promise<void> {
    while (this.waiting) {
      const { question } = this.waiting;
      this.waiting = null;
      const underway = { abort: new AbortController(), since: this.now() };
      this.underway = underway;
      try {
        const answer = await this.asker(question, underway.abort.signal);
        if (!underway.abort.signal.aborted) this.settled(question, answer, null);
      } catch (error) {
        if (!underway.abort.signal.aborted && !this.waiting) this.settled(question, null, error);
      } finally {
        this.underway = null;
      }
    }
  }
}
