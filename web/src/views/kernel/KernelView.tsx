export default function KernelView() { return <div className="empty">…</div>; }
